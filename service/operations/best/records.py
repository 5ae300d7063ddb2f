"""The measured trials that predictions rest on, read from the database: those behind the bests of tuned shapes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.studies.rows import barred
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.record import Record

FEWEST_TRIALS = 8
"""A shape with fewer measured trials is not used for predictions: it says too little about other shapes."""


def records_of(session: Session, kernel: Kernel, ids: Sequence[int]) -> list[Record]:
    """Measured trials behind these best rows, of today's sources; for each problem from its newest study."""
    best, trial = models.BestConfiguration, models.Trial
    rows = session.execute(
        select(
            best.id,
            models.Problem.shape,
            models.Problem.dtype,
            models.Problem.options,
            trial.study_id,
            models.Environment.origin,
            best.library_name,
            best.library_ms,
        )
        .join(best.problem)
        .join(best.trial)
        .join(best.environment)
        .where(best.id.in_(ids))
        .order_by(models.Environment.origin.is_not(None), best.id.desc())  # measured here before imported
    ).all()
    newest: dict[Problem, Any] = {}
    for row in rows:
        newest.setdefault(kernel.problem(row.shape, row.dtype, row.options), row)
    trials = _trials(session, kernel, {row.study_id for row in newest.values()})
    records = [
        replace(trials[row.study_id].record(problem, row.origin), library=_library(row.library_name, row.library_ms))
        for problem, row in newest.items()
    ]
    return [record for record in records if len(record.times_ms) >= FEWEST_TRIALS]


def _library(name: str | None, time_ms: float | None) -> LibraryTime | None:
    return None if name is None or time_ms is None else LibraryTime(name, time_ms)


@dataclass
class _Trials:
    """The trials of one study as predictions use them."""

    failed: set[Configuration]
    times_ms: dict[Configuration, float] = field(default_factory=dict)
    registers: dict[Configuration, int] = field(default_factory=dict)

    def add(self, configuration: Configuration, time_ms: float | None, registers: int | None) -> None:
        """Adds one trial to the records."""
        if time_ms is None:
            self.failed.add(configuration)
        elif configuration not in self.failed:
            self.times_ms[configuration] = time_ms
            if registers:
                self.registers[configuration] = registers

    def record(self, problem: Problem, origin: str | None) -> Record:
        """The trials as a predictor takes them."""
        return Record(problem, self.times_ms, self.registers, frozenset(self.failed), origin)


def _trials(session: Session, kernel: Kernel, studies: Collection[int]) -> dict[int, _Trials]:
    """Measured and failed configurations by study; failures come from trials, finals and retracted bests."""
    trial = models.Trial
    current = kernel_variant_ids(session, kernel).values()
    rows = session.execute(
        select(trial.study_id, trial.configuration, trial.time_ms, trial.registers)
        .where(
            trial.study_id.in_(studies),
            trial.kernel_variant_id.in_(current),
            trial.outcome != Outcome.CONSTRAINT_VIOLATED,  # which says nothing of other problems
        )
        .order_by(trial.id)  # of two as good ones the first is predicted: every process must see the same
    )
    by_study = {study: _Trials(set()) for study in studies}
    for study in _with_fallen(session, studies):
        by_study[study].failed |= barred(session, study)
    for row in rows:
        by_study[row.study_id].add(Configuration.from_json(row.configuration), row.time_ms, row.registers)
    return by_study


def _with_fallen(session: Session, studies: Collection[int]) -> set[int]:
    """The studies in which a finalist failed at last, or from which a best was retracted."""
    job, best, trial = models.TuningJob, models.BestConfiguration, models.Trial
    has_fallen = func.jsonb_array_length(func.coalesce(job.result["dropped"], literal([], JSONB))) > 0
    fallen = session.scalars(select(job.study_id).where(job.study_id.in_(studies), has_fallen))
    retracted = session.scalars(
        select(trial.study_id)
        .join(best, best.trial_id == trial.id)
        .where(trial.study_id.in_(studies), best.retracted_at.is_not(None))
    )
    return {study for study in (*fallen, *retracted) if study is not None}
