"""The current best configurations, newest first: the table that the first page and `/v1/results` show."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.answers import Answer, EnvironmentAnswer, LibraryAnswer, Page, ProblemAnswer
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.operations.registry import environment_answer, problem_answer
from tilewright.service.store import models


class ResultAnswer(Answer):
    """One current best configuration as it was measured; ratios are of times and above 1 in its favour."""

    id: int
    problem: ProblemAnswer
    device_model: str
    environment: EnvironmentAnswer
    variant: str
    configuration: dict[str, int]
    time_ms: float
    ci_ms: tuple[float, float]
    l2: str
    gflops: float
    gb_per_s: float
    roof_ratio: float | None
    gain_over_default: float | None
    gain_over_slowest: float | None
    library: LibraryAnswer | None
    ties: int
    study_id: int
    trial_number: int
    verified_at: datetime


def library_answer(row: models.BestConfiguration) -> LibraryAnswer | None:
    """The library's side of a best configuration, or None where no library was timed beside it."""
    if row.library_ms is None or row.library_name is None:
        return None
    return LibraryAnswer(
        name=row.library_name,
        time_ms=row.library_ms,
        faster=bool(row.library_faster),
        speedup=row.library_ms / row.time_ms,
    )


def gain(over_ms: float | None, row: models.BestConfiguration) -> float | None:
    """How many times longer `over_ms` is than the best's time; None where nothing was measured."""
    return over_ms / row.time_ms if over_ms is not None else None


def split_configuration(stored: dict[str, str | int]) -> tuple[str, dict[str, int]]:
    """Variant and parameter values of a stored configuration."""
    return str(stored["variant"]), {name: int(value) for name, value in stored.items() if name != "variant"}


def results(
    session: Session,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ResultAnswer]:
    """One page of current best configurations, newest first; unknown names give an empty page."""
    best = models.BestConfiguration
    query = (
        select(best)
        .join(best.problem)
        .join(models.Problem.kernel)
        .join(best.device_model)
        .where(best.superseded_by_id.is_(None), best.retracted_at.is_(None))
        .options(
            joinedload(best.problem).joinedload(models.Problem.kernel),
            joinedload(best.device_model),
            joinedload(best.environment),
            joinedload(best.trial),
        )
        .order_by(best.id.desc())
        .limit(limit + 1)
    )
    if kernel is not None:
        query = query.where(models.Kernel.name == kernel)
    if device_model is not None:
        query = query.where(models.DeviceModel.slug == device_model)
    if cursor is not None:
        query = query.where(best.id < row_id_of(cursor))
    rows = session.scalars(query).all()
    return Page(
        items=[_answer(row) for row in rows[:limit]],
        next_cursor=cursor_of(rows[limit - 1].id) if len(rows) > limit else None,
    )


def _answer(row: models.BestConfiguration) -> ResultAnswer:
    variant, values = split_configuration(row.trial.configuration)
    return ResultAnswer(
        id=row.id,
        problem=problem_answer(row.problem),
        device_model=row.device_model.slug,
        environment=environment_answer(row.environment),
        variant=variant,
        configuration=values,
        time_ms=row.time_ms,
        ci_ms=(row.ci_low_ms, row.ci_high_ms),
        l2=row.l2,
        gflops=row.gflops,
        gb_per_s=row.gb_per_s,
        roof_ratio=row.roof_ratio,
        gain_over_default=gain(row.default_ms, row),
        gain_over_slowest=gain(row.slowest_ms, row),
        library=library_answer(row),
        ties=row.ties,
        study_id=row.trial.study_id,
        trial_number=row.trial.number,
        verified_at=row.verified_at,
    )
