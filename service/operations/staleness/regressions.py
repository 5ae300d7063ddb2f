"""Bests that are slower than the one before them, of the same problem, device model, L2 state and origin."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Subquery, and_, false, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.service.operations.staleness.comparisons import DRIFT
from tilewright.service.store import models


def with_earlier(*conditions: ColumnElement[bool]) -> Subquery:
    """Every best of these with `slowdown`: its time over that of the one before it; null for the first.

    `is_regressed`: beyond the noise of both, as `comparisons.compare` decides. Retracted ones are not compared with:
    they were wrong. A regression that a note acknowledges does not count.
    """
    best, environment = models.BestConfiguration, models.Environment
    noise = func.greatest(best.ci_high_ms - best.time_ms, best.time_ms - best.ci_low_ms, 0.0) / best.time_ms

    def earlier(value: ColumnElement[Any] | InstrumentedAttribute[float]) -> ColumnElement[Any]:
        alike = (best.problem_id, best.device_model_id, best.l2, environment.origin)
        return func.lag(value).over(partition_by=alike, order_by=(best.verified_at, best.id))

    slowdown, earlier_noise = best.time_ms / earlier(best.time_ms), earlier(noise)
    note = models.StudyNote.acknowledged_result_id
    is_acknowledged = best.id.in_(select(note).where(note.is_not(None)))
    threshold = func.sqrt(noise * noise + earlier_noise * earlier_noise + 2 * DRIFT**2)
    return (
        select(
            best.id,
            slowdown.label("slowdown"),
            func.coalesce(and_(slowdown > 1 + threshold, ~is_acknowledged), false()).label("is_regressed"),
        )
        .join(environment, environment.id == best.environment_id)
        .where(best.retracted_at.is_(None), *conditions)
        .subquery("with_earlier")
    )


def slowdowns(session: Session, problem_ids: Collection[int]) -> dict[int, float]:
    """How much slower than the best before it, by the id of each best of these problems that regressed."""
    earlier = with_earlier(models.BestConfiguration.problem_id.in_(problem_ids))
    rows = session.execute(select(earlier.c.id, earlier.c.slowdown).where(earlier.c.is_regressed))
    return {row.id: row.slowdown for row in rows}
