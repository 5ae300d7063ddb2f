"""Bests that are slower than the one before them, of the same problem, device model, L2 state and origin."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, false, func, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from tilewright.service.operations.staleness.comparisons import DRIFT
from tilewright.service.store import models


@dataclass(frozen=True)
class Earlier:
    """The best before each row of `best_configurations` joined with `environments`: join `row` on true.

    `slowdown`: the row's time over that of the best before it, null for the first. `is_regressed`: that is beyond the
    noise of both, as `comparisons.compare` decides, and no note acknowledges it. Retracted bests were wrong: nothing is
    compared with them.
    """

    row: FromClause
    slowdown: ColumnElement[float]
    is_regressed: ColumnElement[bool]


def earlier_best() -> Earlier:
    """The best before each best. An index finds it, row by row: the cost does not depend on statistics."""
    best, environment = models.BestConfiguration, models.Environment
    then, there = aliased(best), aliased(environment)
    row = (
        select(then.time_ms, _noise(then).label("noise"))
        .join(there, there.id == then.environment_id)
        .where(
            then.problem_id == best.problem_id,
            then.device_model_id == best.device_model_id,
            then.l2 == best.l2,
            there.origin.is_not_distinct_from(environment.origin),
            then.retracted_at.is_(None),
            tuple_(then.verified_at, then.id) < tuple_(best.verified_at, best.id),
        )
        .order_by(then.verified_at.desc(), then.id.desc())
        .limit(1)
        .lateral("earlier")
    )
    note = models.StudyNote.acknowledged_result_id
    is_acknowledged = best.id.in_(select(note).where(note.is_not(None)))
    threshold = func.sqrt(_noise(best) * _noise(best) + row.c.noise * row.c.noise + 2 * DRIFT**2)
    slowdown = best.time_ms / row.c.time_ms
    return Earlier(row, slowdown, func.coalesce(and_(slowdown > 1 + threshold, ~is_acknowledged), false()))


def _noise(best: type[models.BestConfiguration]) -> ColumnElement[Any]:
    return func.greatest(best.ci_high_ms - best.time_ms, best.time_ms - best.ci_low_ms, 0.0) / best.time_ms


def slowdowns(session: Session, problem_ids: Collection[int]) -> dict[int, float]:
    """By id of each regressed best of these problems, its time over that of the best before it."""
    best, earlier = models.BestConfiguration, earlier_best()
    rows = (
        select(best.id, earlier.slowdown.label("slowdown"))
        .join(models.Environment, models.Environment.id == best.environment_id)
        .join(earlier.row, true())
        .where(best.problem_id.in_(problem_ids), best.retracted_at.is_(None), earlier.is_regressed)
    )
    return {row.id: row.slowdown for row in session.execute(rows)}
