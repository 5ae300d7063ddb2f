"""The history of one problem's best: every settled winner, oldest first, superseded and retracted ones included."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field
from sqlalchemy import and_, func, select, true
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.answers import Answer, EnvironmentAnswer, Page, ProblemAnswer
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.staleness.comparisons import TimeInterval, compare
from tilewright.service.operations.staleness.regressions import earlier_best
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models

MAX_ENTRIES = 500


class HistoryEntry(Answer):
    """One settled winner; what changed since the one before on the same device model, and whether it is faster."""

    result_id: int
    device_model: str
    environment: EnvironmentAnswer
    variant: str
    configuration: dict[str, int]
    source_hash: str
    time_ms: float
    ci_ms: tuple[float, float]
    gflops: float | None
    library_name: str | None
    library_ms: float | None = Field(description="Time of the library in the same finals; null where none was timed.")
    study_id: int
    trial_number: int
    verified_at: datetime
    stands: bool = Field(description="Neither superseded nor retracted.")
    retracted_reason: str | None
    changed: list[str] = Field(description="driver, toolkit, compiler, source, configuration: against the one before.")
    verdict: str | None = Field(description="better, same, worse than the one before; null for the first.")
    ratio: float | None = Field(description="Time over that of the one before; below 1 is faster.")


class ChangedProblem(Answer):
    """A problem with several settled winners on one device model."""

    problem: ProblemAnswer
    device_model: str
    bests: int
    verified_at: datetime
    slowdown: float | None = Field(description="The newest time over the one before it.")
    is_regressed: bool = Field(description="Whether it is slower beyond the noise, and no note acknowledges that.")


def changed_problems(session: Session, *, kernel: str | None = None, limit: int = 20) -> list[ChangedProblem]:
    """The problems whose best has been replaced, the newest first; of that kernel alone where one is named."""
    best, model, problem = models.BestConfiguration, models.DeviceModel, models.Problem
    newest = func.max(best.verified_at)
    several = (
        select(best.problem_id, model.id, model.slug, func.count().label("bests"), newest.label("verified_at"))
        .join(model, model.id == best.device_model_id)
        .group_by(best.problem_id, model.id)
        .having(func.count() > 1)
        .order_by(newest.desc(), best.problem_id, model.slug)
        .limit(limit)
    )
    if kernel is not None:
        several = several.join(best.problem).where(problem.kernel.has(models.Kernel.name == kernel))
    found = several.subquery("several")
    earlier, environment = earlier_best(), models.Environment
    same = and_(best.problem_id == found.c.problem_id, best.device_model_id == found.c.id)
    last = (
        select(earlier.slowdown.label("slowdown"), earlier.is_regressed.label("is_regressed"))
        .join_from(best, environment, environment.id == best.environment_id)
        .outerjoin(earlier.row, true())
        .where(same, best.retracted_at.is_(None))
        .order_by(best.verified_at.desc(), best.id.desc())
        .limit(1)
        .lateral("last")
    )
    query = select(found, problem, last.c.slowdown, last.c.is_regressed).options(joinedload(problem.kernel))
    query = query.join(problem, problem.id == found.c.problem_id).outerjoin(last, true())
    rows = session.execute(query.order_by(found.c.verified_at.desc(), found.c.problem_id, found.c.slug))
    return [
        ChangedProblem(
            problem=problem_answer(row.Problem),
            device_model=row.slug,
            bests=row.bests,
            verified_at=row.verified_at,
            slowdown=row.slowdown,
            is_regressed=bool(row.is_regressed),
        )
        for row in rows
    ]


def history(session: Session, problem_hash: str, *, device_model: str | None = None) -> Page[HistoryEntry]:
    """The newest MAX_ENTRIES winners of the problem, the oldest of them first."""
    best = models.BestConfiguration
    query = (
        select(best)
        .join(best.problem)
        .join(best.device_model)
        .where(models.Problem.hash == problem_hash)
        .options(
            joinedload(best.device_model),
            joinedload(best.environment),
            joinedload(best.trial).joinedload(models.Trial.kernel_variant),
        )
        .order_by(best.verified_at.desc(), best.id.desc())
        .limit(MAX_ENTRIES)
    )
    if device_model is not None:
        query = query.where(models.DeviceModel.slug == device_model)
    before: dict[int, models.BestConfiguration] = {}
    entries = []
    for row in reversed(session.scalars(query).all()):
        entries.append(_entry(row, before.get(row.device_model_id)))
        before[row.device_model_id] = row
    return Page(items=entries)


def _entry(row: models.BestConfiguration, before: models.BestConfiguration | None) -> HistoryEntry:
    variant, values = split_configuration(row.trial.configuration)
    verdict, ratio = None, None
    if before is not None:
        comparison, ratio, _ = compare(TimeInterval.of(before), TimeInterval.of(row))
        verdict = comparison.value
    return HistoryEntry.of_row(
        row,
        result_id=row.id,
        device_model=row.device_model.slug,
        variant=variant,
        configuration=values,
        source_hash=row.trial.kernel_variant.source_hash,
        ci_ms=(row.ci_low_ms, row.ci_high_ms),
        study_id=row.trial.study_id,
        trial_number=row.trial.number,
        stands=row.superseded_by_id is None and row.retracted_at is None,
        changed=_changed(row, before) if before is not None else [],
        verdict=verdict,
        ratio=ratio,
    )


def _changed(row: models.BestConfiguration, before: models.BestConfiguration) -> list[str]:
    now, then = row.environment, before.environment
    differs = {
        "driver": now.driver != then.driver,
        "toolkit": now.toolkit != then.toolkit,
        "compiler": (now.compiler, now.compiler_version) != (then.compiler, then.compiler_version),
        "source": row.trial.kernel_variant_id != before.trial.kernel_variant_id,
        "configuration": row.trial.configuration != before.trial.configuration,
    }
    return [name for name, is_different in differs.items() if is_different]
