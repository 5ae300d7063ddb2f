"""Every pair of a problem and a device model that has a best, or a job that failed instead, as a table of the database.

What `best` answers is decided as `best.rows.in_preference` does; verdicts are those of the pages of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import CTE, ColumnElement, Float, Select, cast, false, func, literal, null, select, true
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from tilewright.service.operations.best.results import AgainstLibrary, against_library
from tilewright.service.operations.shape_filter import is_family
from tilewright.service.operations.staleness.regressions import earlier_best
from tilewright.service.operations.staleness.standing import in_preference_of_best, is_current, with_staleness
from tilewright.service.store import models
from tilewright.service.store.models import JobState


class CellStatus(StrEnum):
    """The states by which cells of the matrix can be filtered."""

    AHEAD = AgainstLibrary.AHEAD.value
    LEVEL = AgainstLibrary.LEVEL.value
    BEHIND = AgainstLibrary.BEHIND.value
    STALE = "stale"
    REGRESSED = "regressed"
    FAILED = "failed"


def known_cells(session: Session, problems: Sequence[ColumnElement[bool]], device_model_id: int | None = None) -> CTE:
    """A row for each known pair; `problems`: conditions on joined `problems`. With a device model, only its pairs.

    Columns: problem_id, device_model_id, best_id (null: failed), ratio (library over ours), gain (default over ours),
    verdict, is_stale, is_regressed, slowdown (over the best before it), at (when it was verified, or when the job was
    made).
    """
    best, job = models.BestConfiguration, models.TuningJob
    of_model = [] if device_model_id is None else [best.device_model_id == device_model_id]
    failed = _failed(problems)
    failed = failed if device_model_id is None else failed.where(job.device_model_id == device_model_id)
    return _bests(session, problems, of_model).union_all(failed).cte("known_cells")


def has_status(cells: CTE, status: CellStatus) -> ColumnElement[bool]:
    """Whether a cell has the status."""
    match status:
        case CellStatus.FAILED:
            return cells.c.best_id.is_(None)
        case CellStatus.STALE:
            return cells.c.is_stale
        case CellStatus.REGRESSED:
            return cells.c.is_regressed
        case _:
            return func.coalesce(cells.c.verdict == status.value, false())


def _bests(
    session: Session, problems: Sequence[ColumnElement[bool]], of_model: Sequence[ColumnElement[bool]]
) -> Select[Any, *tuple[Any, ...]]:
    best = models.BestConfiguration
    wanted = select(best.id).join(best.problem).where(*problems, *of_model, is_current())
    rows, is_stale = with_staleness(session, wanted)
    earlier = earlier_best()
    columns = (
        best.problem_id,
        best.device_model_id,
        best.id.label("best_id"),
        (best.library_ms / best.time_ms).label("ratio"),
        (best.default_ms / best.time_ms).label("gain"),
        against_library().label("verdict"),
        is_stale.label("is_stale"),
        earlier.is_regressed.label("is_regressed"),
        earlier.slowdown.label("slowdown"),
        best.verified_at.label("at"),
    )
    found = rows.with_only_columns(*columns)
    return (
        found.outerjoin(earlier.row, true())
        .ext(distinct_on(best.problem_id, best.device_model_id))
        .order_by(best.problem_id, best.device_model_id, *in_preference_of_best(is_stale))
    )


def _failed(problems: Sequence[ColumnElement[bool]]) -> Select[tuple[object, ...]]:
    best, job = models.BestConfiguration, models.TuningJob
    known = select(best.id).where(
        best.problem_id == job.problem_id, best.device_model_id == job.device_model_id, is_current()
    )
    return (
        select(
            job.problem_id,
            job.device_model_id,
            null(),
            cast(null(), Float),
            cast(null(), Float),
            null(),
            literal(value=False),
            literal(value=False),
            cast(null(), Float),
            func.max(job.created_at),
        )
        .join(models.Problem, models.Problem.id == job.problem_id)
        .where(*problems, job.state == JobState.FAILED, job.device_model_id.is_not(None), ~known.exists(), ~is_family())
        .group_by(job.problem_id, job.device_model_id)
    )
