"""The current best configurations, newest first: the table that the first page and `/v1/results` show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.answers import Answer, EnvironmentAnswer, LibraryAnswer, Page, ProblemAnswer
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.operations.registry import environment_answer, problem_answer
from tilewright.service.store import models

Row = TypeVar("Row")


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
    query = _with_relations(_current(select(best), kernel, device_model)).order_by(best.id.desc()).limit(limit + 1)
    if cursor is not None:
        query = query.where(best.id < row_id_of(cursor))
    rows = session.scalars(query).all()
    return Page(
        items=[_answer(row) for row in rows[:limit]],
        next_cursor=cursor_of(rows[limit - 1].id) if len(rows) > limit else None,
    )


@dataclass(frozen=True)
class ModelResults:
    """The newest current best configurations of one device model, and how many there are in all."""

    items: list[ResultAnswer]
    total: int


def results_by_model(
    session: Session, *, kernel: str | None = None, device_model: str | None = None, each: int = 10
) -> dict[str, ModelResults]:
    """The newest `each` results of every device model that has any, by slug; in one query."""
    best = models.BestConfiguration
    place = func.row_number().over(partition_by=best.device_model_id, order_by=best.id.desc())
    total = func.count().over(partition_by=best.device_model_id)
    ranked = _current(select(best.id, place.label("place"), total.label("total")), kernel, device_model).subquery()
    query = (
        _with_relations(select(best).add_columns(ranked.c.total))
        .join(ranked, ranked.c.id == best.id)
        .where(ranked.c.place <= each)
        .order_by(best.id.desc())
    )
    found: dict[str, ModelResults] = {}
    for row, count in session.execute(query):
        found.setdefault(row.device_model.slug, ModelResults([], count)).items.append(_answer(row))
    return found


def _current(query: Select[Row], kernel: str | None, device_model: str | None) -> Select[Row]:
    """The query over best configurations, for those that stand, of this kernel and device model where given."""
    best = models.BestConfiguration
    query = query.where(best.superseded_by_id.is_(None), best.retracted_at.is_(None))
    if kernel is not None:
        query = query.join(best.problem).join(models.Problem.kernel).where(models.Kernel.name == kernel)
    if device_model is not None:
        query = query.join(best.device_model).where(models.DeviceModel.slug == device_model)
    return query


def _with_relations(query: Select[Row]) -> Select[Row]:
    """The query over best configurations, with everything that an answer is made of."""
    best = models.BestConfiguration
    return query.options(
        joinedload(best.problem).joinedload(models.Problem.kernel),
        joinedload(best.device_model),
        joinedload(best.environment),
        joinedload(best.trial),
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
