"""The current best configurations, newest first: the table that the first page and `/v1/results` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict, TypeVar

from pydantic import Field
from sqlalchemy import ColumnElement, Float, Select, and_, case, cast, func, literal, null, select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import PACK_MS, Answer, EnvironmentAnswer, LibraryAnswer, Page, ProblemAnswer
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.pages import MAX_ROW_ID, cursor_of, row_id_of
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.staleness.regressions import slowdowns
from tilewright.service.operations.staleness.standing import (
    Standing,
    is_current,
    only_stale,
    perhaps_improvable,
    standings,
)
from tilewright.service.operations.studies.rows import split_configuration
from tilewright.service.store import models
from tilewright.tuner.library.names import is_launched

Row = TypeVar("Row")

Bounds = Mapping[str, tuple[float, float]]
"""Lowest and highest value by parameter, as `parse.parse_selection` reads them; `time` bounds the time, in ms."""

MOST_LOOKED_AT = 2000
"""How many results one page filters by `improvable`; a page that finds too few still has a cursor to the next."""


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
    pack_ms: float | None = Field(default=None, description=PACK_MS)
    l2: str
    gflops: float | None
    gb_per_s: float | None
    roof_ratio: float | None
    gain_over_default: float | None
    gain_over_slowest: float | None
    library: LibraryAnswer | None
    bound_ratio: float | None
    ties: int
    study_id: int
    trial_number: int
    verified_at: datetime
    stale: bool
    stale_because: list[str] = Field(description="What moved on since: source, driver, toolkit, compiler.")
    improvable: bool
    unseen_variants: list[str] = Field(description="Variants that its study has not tried as they are now.")
    retracted_at: datetime | None
    retracted_reason: str | None
    retracted_by: str | None = Field(description="Who asked for it; null where later finals did.")
    slowdown: float | None = Field(
        None,
        description="Its time over that of the best before it, where it regressed beyond the noise and nobody said so.",
    )
    stands_in_for: int | None = Field(description="The retracted result in whose place it was put.")

    @property
    def against_library(self) -> AgainstLibrary | None:
        """Ahead of the library, level or behind; None where none was timed."""
        if self.library is None:
            return None
        return AgainstLibrary.of(self.library.time_ms, self.ci_ms[1], is_library_faster=self.library.faster)


class WhichResults(TypedDict, total=False):
    """Filters of a page of results; an absent one filters nothing."""

    kernel: str | None
    device_model: str | None
    stale: bool | None
    improvable: bool | None
    retracted: bool
    limit: int


def measured_fields(row: models.BestConfiguration | StoredBest, standing: Standing) -> dict[str, Any]:
    """The fields that BestAnswer and ResultAnswer share, by name, for a measured best configuration."""
    library = None
    if row.library_ms is not None and row.library_name is not None:
        library = {
            "name": row.library_name,
            "time_ms": row.library_ms,
            "faster": bool(row.library_faster),
            "speedup": row.library_ms / row.time_ms,
            "bound_ratio": row.library_bound_ratio,
            "expected": False,
            "launched": bool(row.library_faster) and is_launched(row.library_name),
        }
    return {
        **{name: getattr(row, name) for name in _SAME},
        "ci_ms": (row.ci_low_ms, row.ci_high_ms),
        "gain_over_default": None if row.default_ms is None else row.default_ms / row.time_ms,
        "gain_over_slowest": None if row.slowest_ms is None else row.slowest_ms / row.time_ms,
        "library": library,
        "stale": standing.stale,
        "stale_because": standing.stale_because,
        "improvable": standing.improvable,
        "unseen_variants": standing.unseen_variants,
    }


_SAME = ("time_ms", "pack_ms", "l2", "gflops", "gb_per_s", "roof_ratio", "bound_ratio", "ties", "verified_at")


def results(
    session: Session,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    stale: bool | None = None,
    improvable: bool | None = None,
    retracted: bool = False,
    selection: Bounds | None = None,
    variant: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ResultAnswer]:
    """One page of current best configurations, newest first; unknown names give an empty page.

    `stale` and `improvable` narrow it to those that are, or are not. `retracted`: those that were withdrawn instead.
    """
    best = models.BestConfiguration
    query = with_relations(current_results(select(best), kernel, device_model, retracted=retracted))
    query = query.where(*selected(selection or {}, variant))
    if stale is not None:
        query = only_stale(session, query, wanted=stale)
    if improvable:
        query = perhaps_improvable(session, query)
    answers: list[ResultAnswer] = []
    before, looked_at = row_id_of(cursor) if cursor is not None else None, 0
    while True:
        rows = session.scalars(_older(query, before).limit(limit + 1)).all()
        for answer in result_answers(session, rows[:limit]):
            if improvable is None or answer.improvable == improvable:
                answers.append(answer)
                if len(answers) == limit:
                    is_last = answer.id == rows[-1].id
                    return Page(items=answers, next_cursor=None if is_last else cursor_of(answer.id))
        if len(rows) <= limit:
            return Page(items=answers, next_cursor=None)
        before, looked_at = rows[limit - 1].id, looked_at + limit
        if looked_at >= MOST_LOOKED_AT:
            return Page(items=answers, next_cursor=cursor_of(before))


def _older(query: Select[Row], before: int | None) -> Select[Row]:
    best = models.BestConfiguration
    query = query.order_by(best.id.desc())
    return query if before is None else query.where(best.id < before)


def result(session: Session, result_id: int) -> ResultAnswer:
    """One best configuration, also a superseded or retracted one; raises NotFoundError."""
    best = models.BestConfiguration
    query = with_relations(select(best)).where(best.id == result_id).execution_options(populate_existing=True)
    row = session.scalars(query).one_or_none() if 0 < result_id <= MAX_ROW_ID else None
    if row is None:
        raise NotFoundError("result", str(result_id))
    return result_answers(session, [row])[0]


def settled(session: Session, study_id: int) -> ResultAnswer | None:
    """The current best configuration that the finals of this study settled on; None before, and once retracted."""
    best = models.BestConfiguration
    query = with_relations(select(best)).join(best.trial).where(models.Trial.study_id == study_id, is_current())
    row = session.scalars(query.order_by(best.id.desc()).limit(1)).one_or_none()
    return result_answers(session, [row])[0] if row is not None else None


def current_results(
    query: Select[Row], kernel: str | None, device_model: str | None, *, retracted: bool = False
) -> Select[Row]:
    """The query for current best configurations, of this kernel and device model where given."""
    best = models.BestConfiguration
    query = query.where(best.retracted_at.is_not(None) if retracted else is_current())
    if kernel is not None:
        query = query.join(best.problem).join(models.Problem.kernel).where(models.Kernel.name == kernel)
    if device_model is not None:
        query = query.join(best.device_model).where(models.DeviceModel.slug == device_model)
    return query


def selected(selection: Bounds, variant: str | None) -> list[ColumnElement[bool]]:
    """The conditions on best configurations to be of the variant and to have values within the bounds."""
    best, trial = models.BestConfiguration, models.Trial
    of_trial = [] if variant is None else [trial.configuration["variant"].astext == variant]
    for name, (low, high) in selection.items():
        value = trial.configuration[name]
        is_number = func.jsonb_typeof(value) == "number"  # casting any other value would fail
        bounded: Any = best.time_ms if name == "time" else case((is_number, cast(value.astext, Float)))
        of_trial.append(bounded.between(low, high))
    return [best.trial.has(and_(*of_trial))] if of_trial else []


def with_relations(query: Select[Row]) -> Select[Row]:
    """The query over best configurations, which loads every relation that an answer needs."""
    best = models.BestConfiguration
    return query.options(
        joinedload(best.problem).joinedload(models.Problem.kernel),
        joinedload(best.device_model),
        joinedload(best.environment),
        joinedload(best.trial),
    )


def result_answers(session: Session, rows: Sequence[models.BestConfiguration]) -> list[ResultAnswer]:
    """The best configurations as callers see them, in order; their relations must be loaded."""
    if not rows:
        return []
    standing_by_id = standings(session, [row.id for row in rows])
    regressed = slowdowns(session, {row.problem_id for row in rows})
    return [_result_answer(row, standing_by_id[row.id], regressed.get(row.id)) for row in rows]


def _result_answer(row: models.BestConfiguration, standing: Standing, slowdown: float | None) -> ResultAnswer:
    variant, values = split_configuration(row.trial.configuration)
    return ResultAnswer(
        id=row.id,
        problem=problem_answer(row.problem),
        device_model=row.device_model.slug,
        environment=EnvironmentAnswer.model_validate(row.environment),
        variant=variant,
        configuration=values,
        study_id=row.trial.study_id,
        trial_number=row.trial.number,
        retracted_at=row.retracted_at,
        retracted_reason=row.retracted_reason,
        retracted_by=row.retracted_by,
        slowdown=slowdown,
        stands_in_for=row.stands_in_for_id,
        **measured_fields(row, standing),
    )


class AgainstLibrary(StrEnum):
    """The verdict of the finals, which time both in the same rounds; `level`: the noise does not tell them apart."""

    AHEAD = "ahead"
    LEVEL = "level"
    BEHIND = "behind"

    @classmethod
    def of(cls, library_ms: float, ci_high_ms: float, *, is_library_faster: bool) -> AgainstLibrary:
        """The verdict on a best whose interval ends at `ci_high_ms`."""
        if is_library_faster:
            return cls.BEHIND
        return cls.AHEAD if library_ms > ci_high_ms else cls.LEVEL


def against_library() -> ColumnElement[str | None]:
    """The verdict beside the library as an SQL expression; null where no library was timed."""
    best = models.BestConfiguration
    return case(
        (best.library_ms.is_(None), null()),
        (best.library_faster.is_(True), literal(AgainstLibrary.BEHIND.value)),
        (best.library_ms > best.ci_high_ms, literal(AgainstLibrary.AHEAD.value)),
        else_=literal(AgainstLibrary.LEVEL.value),
    )
