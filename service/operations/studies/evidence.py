"""The record of one trial: its single times, its source, and the trials to compare it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.answers import TrialAnswer
from tilewright.service.operations.jobs.jobs import trial_answer
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.studies.rows import kept_samples, ranking_interval
from tilewright.service.store import models


@dataclass(frozen=True)
class Evidence:
    """A trial with the exact source, the single times behind the one that ranks, and 95 % of their median."""

    trial: TrialAnswer
    source_hash: str
    source: str
    l2: str
    samples_ms: Sequence[float]  # empty once pruned
    ci_ms: tuple[float, float] | None


def evidence(session: Session, study_id: int, number: int) -> Evidence | None:
    """The trial of that number; None where the study has no such trial."""
    if not (0 <= number <= MAX_ROW_ID and 0 < study_id <= MAX_ROW_ID):
        return None
    table = models.Trial
    query = select(table).where(table.study_id == study_id, table.number == number)
    row = session.scalars(query.options(joinedload(table.kernel_variant))).one_or_none()
    if row is None:
        return None
    samples = kept_samples(row)
    has_interval = len(samples) > 1 or row.ci_low_ms is not None
    interval = ranking_interval(row) if has_interval else None
    return Evidence(
        trial=trial_answer(row),
        source_hash=row.kernel_variant.source_hash,
        source=row.kernel_variant.source,
        l2=row.ranking_l2,
        samples_ms=samples,
        ci_ms=(interval.low, interval.high) if interval else None,
    )


def trial_with(session: Session, study_id: int, variant: str, values: Mapping[str, int]) -> TrialAnswer | None:
    """The study's newest trial of that configuration; None where it has none."""
    table = models.Trial
    query = select(table).where(table.study_id == study_id, table.configuration == {"variant": variant, **values})
    row = session.scalars(query.order_by(table.number.desc()).limit(1)).one_or_none()
    return trial_answer(row) if row is not None else None
