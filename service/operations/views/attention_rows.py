"""The rows behind the list of what needs attention: results and failed jobs, each with its reasons in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Subquery, and_, false, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from tilewright.service.operations.answers import Answer, ProblemAnswer
from tilewright.service.operations.best.results import AgainstLibrary
from tilewright.service.operations.staleness.standing import Standing, is_current, perhaps_improvable, standings
from tilewright.service.operations.views.attention_kind import AttentionKind
from tilewright.service.operations.views.cells import known_cells
from tilewright.service.store import models
from tilewright.service.store.models import JobState

STAND_IN = "cpu"
"""The kind of device whose times stand in for a GPU's: what tuning saves there, nobody has."""

MOST_RESULTS = 500
"""The most results and failures that are listed: those that lose most beside the library or the best before them."""


class AttentionReason(Answer):
    """One reason, in a sentence."""

    kind: AttentionKind
    text: str


@dataclass(frozen=True)
class Pair:
    """A problem on a device model; `gain`: the share of its time that may be saved, None where nothing tells."""

    problem: ProblemAnswer
    problem_hash: str
    device_model: str
    reasons: tuple[AttentionReason, ...]
    requests: int = 0
    gain: float | None = None
    study_id: int | None = None


@dataclass(frozen=True)
class KnownPairs:
    """The listed pairs, and the number of each kind and in all; only so many improvable ones are listed."""

    items: list[Pair]
    total: int
    counts: dict[AttentionKind, int]


def known_pairs(
    session: Session,
    *,
    kernel: str | None,
    device_model: str | None,
    kind: AttentionKind | None = None,
    least_slowdown: float = 0.0,
) -> KnownPairs:
    """Every result and failed job with a reason for attention; those with a reason of that kind come first."""
    rows = session.execute(_query(session, kernel, device_model, kind, least_slowdown)).all()
    standing_by_id = standings(session, [row.best_id for row in rows if row.best_id is not None])
    pairs, vain = [], 0
    for row in rows:
        standing = standing_by_id.get(row.best_id, Standing())
        reasons = tuple(AttentionReason(kind=kind, text=text) for kind, text in _reasons(row, standing))
        vain += row.improvable and not standing.improvable  # of a variant that cannot run there
        if reasons:
            problem = ProblemAnswer(kernel=row.kernel, shape=row.shape, dtype=row.dtype, options=row.options)
            requests = row.requests or 0
            pairs.append(Pair(problem, row.hash, row.slug, reasons, requests, _gain(row), row.study_id))
    first = rows[0] if rows else None
    counts: dict[AttentionKind, int] = {one: getattr(first, f"all_{one.value}") if first else 0 for one in _IN_DATABASE}
    counts[AttentionKind.IMPROVABLE] -= vain
    total = (first.all_rows if first else 0) - len(rows) + len(pairs)
    return KnownPairs(pairs, total, counts)


def gains_over_default(session: Session) -> dict[str, float]:
    """The geometric mean of the bests' speed-ups over the default, by kernel."""
    best = models.BestConfiguration
    query = (
        select(models.Kernel.name, func.exp(func.avg(func.ln(best.default_ms / best.time_ms))).label("gain"))
        .join(best.problem)
        .join(models.Problem.kernel)
        .where(is_current(), best.default_ms.is_not(None))
        .group_by(models.Kernel.name)
    )
    return {row.name: row.gain for row in session.execute(query)}


_IN_DATABASE = tuple(kind for kind in AttentionKind if kind is not AttentionKind.REQUESTED)


def _query(
    session: Session, kernel: str | None, device_model: str | None, kind: AttentionKind | None, least_slowdown: float
) -> Any:
    problem, model, best, trial = models.Problem, models.DeviceModel, models.BestConfiguration, models.Trial
    own = [] if kernel is None else [problem.kernel.has(models.Kernel.name == kernel)]
    # Its id as a number, in every part: joined at the end, the results of all models were judged first.
    model_id = session.scalar(select(model.id).where(model.slug == device_model)) or 0 if device_model else None
    cells, failing, asked = known_cells(session, own, model_id), _failing(own), models.Demand
    current = select(best.id).where(is_current())
    current = current if model_id is None else current.where(best.device_model_id == model_id)
    unseen = perhaps_improvable(session, current).subquery("unseen")
    holds: dict[AttentionKind | None, ColumnElement[bool]] = {
        AttentionKind.FAILING: failing.c.problem_id.is_not(None),
        AttentionKind.REGRESSED: and_(cells.c.is_regressed, cells.c.slowdown >= 1 + least_slowdown),
        AttentionKind.BEHIND: func.coalesce(cells.c.verdict == AgainstLibrary.BEHIND.value, false()),
        AttentionKind.STALE: cells.c.is_stale,
        AttentionKind.IMPROVABLE: unseen.c.id.is_not(None),
    }
    lost = func.greatest(cells.c.slowdown, 1 / cells.c.ratio, 1.0)
    worth = func.coalesce(asked.count, 1) * (1 - 1 / lost)
    urgent = or_(*(condition for one, condition in holds.items() if one is not AttentionKind.IMPROVABLE))
    return (
        select(
            problem.hash,
            problem.shape,
            problem.dtype,
            problem.options,
            models.Kernel.name.label("kernel"),
            model.slug,
            cells,
            asked.count.label("requests"),
            best.library_name,
            trial.study_id,
            failing.c.error,
            *(holds[one].label(one.value) for one in _IN_DATABASE),
            *(func.count().filter(holds[one]).over().label(f"all_{one.value}") for one in _IN_DATABASE),
            func.count().over().label("all_rows"),
        )
        .select_from(cells)
        .join(problem, problem.id == cells.c.problem_id)
        .join(models.Kernel, models.Kernel.id == problem.kernel_id)
        .join(model, model.id == cells.c.device_model_id)
        .outerjoin(best, best.id == cells.c.best_id)
        .outerjoin(trial, trial.id == best.trial_id)
        .outerjoin(unseen, unseen.c.id == cells.c.best_id)
        .outerjoin(asked, and_(asked.problem_hash == problem.hash, asked.device_model_id == model.id))
        .outerjoin(failing, and_(failing.c.problem_id == problem.id, failing.c.device_model_id == model.id))
        .where(or_(*holds.values()), model.kind != STAND_IN)
        .order_by(holds.get(kind, urgent).desc(), urgent.desc(), worth.desc(), cells.c.problem_id, model.slug)
        .limit(MOST_RESULTS)
    )


def _failing(problems: Sequence[ColumnElement[bool]]) -> Subquery:
    """The newest failed job of each pair that has not succeeded since."""
    job, later = models.TuningJob, aliased(models.TuningJob)
    since = select(later.id).where(
        later.problem_id == job.problem_id,
        later.device_model_id == job.device_model_id,
        later.state == JobState.DONE,
        later.created_at > job.created_at,
    )
    query = (
        select(job.problem_id, job.device_model_id, job.error)
        .join(models.Problem, models.Problem.id == job.problem_id)
        .where(*problems, job.state == JobState.FAILED, ~since.exists())
        .ext(distinct_on(job.problem_id, job.device_model_id))
        .order_by(job.problem_id, job.device_model_id, job.created_at.desc())
    )
    return query.subquery("failing")


def _reasons(row: Any, standing: Standing) -> Iterator[tuple[AttentionKind, str]]:
    if row.failing:
        yield AttentionKind.FAILING, f"its last job failed: {row.error or 'nothing was measured'}"
    if row.regressed:
        text = f"takes {_percent(row.slowdown - 1)} longer than the best before it"
        yield AttentionKind.REGRESSED, text
    if row.behind:
        yield AttentionKind.BEHIND, f"{row.library_name} takes {_percent(1 - row.ratio)} less time"
    if standing.stale:
        yield AttentionKind.STALE, f"{' and '.join(standing.stale_because)} changed since it was measured"
    if standing.improvable:
        yield AttentionKind.IMPROVABLE, f"not tried yet: {', '.join(standing.unseen_variants)}"


def _gain(row: Any) -> float | None:
    """The share of time that would be saved by being as fast as the library, or as the best before."""
    known = [
        *([1 - row.ratio] if row.behind else []),
        *([1 - 1 / row.slowdown] if row.regressed else []),
    ]
    return max(known, default=None)


def _percent(share: float) -> str:
    return f"{share * 100:.{0 if share >= 0.1 else 1}f} %"
