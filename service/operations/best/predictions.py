"""Predicts the best configuration of an untuned shape from the trials of tuned ones; kept until another is tuned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.predictors import Predictors
from tilewright.service.operations.best.rows import TunedShapes, count_retracted
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.operations.studies.rows import barred
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.predict.library import LibraryTime
from tilewright.tuner.predict.predictor import Prediction, Predictor, Record, enough
from tilewright.tuner.predict.shipped import undisplaced

MOST_SHAPES = 300
"""How many tuned shapes, the newest, a predictor is fitted to: fitting to so many takes about two seconds."""

FEWEST_TRIALS = 8
"""A shape with fewer measured trials is not used for predictions: it says too little about other shapes."""

_PREDICTORS = Predictors()


def predictions(
    session: Session,
    kernel: Kernel,
    limits: Limits,
    model_id: int,
    tuned: TunedShapes,
    asked: Mapping[Problem, Callable[[Configuration], bool]],
    *,
    shipped: Sequence[Record] = (),
) -> dict[Problem, Prediction]:
    """A prediction for each problem where the tuned and the shipped shapes allow one; all share dtype and options.

    `asked` says of each problem which configurations it admits, `tuned` holds the best rows of that device model. Each
    of its shapes takes the place of the nearest shipped one.
    """
    if not asked or not enough(max(len(tuned.ids), len(shipped))):
        return {}
    ids = tuple(int(i) for i in tuned.ids[:MOST_SHAPES])  # the newest come first
    retracted = count_retracted(session, kernel.name, model_id)  # before the trials are read: see _series
    series = _series(kernel, limits, next(iter(asked)), retracted, _helpers(shipped))
    fitted = _PREDICTORS.fitted(
        session,
        series,
        ids,
        lambda reading: _fitted(reading, kernel, limits, ids, shipped),
        lambda older: _may_stand_in(session, older, ids),
    )
    predicted = {
        problem: _PREDICTORS.answer(series, fitted, problem, lambda by, p=problem, a=admits: by.predict(p, a))  # type: ignore[misc]
        for problem, admits in asked.items()
    }
    return {problem: prediction for problem, prediction in predicted.items() if prediction is not None}


class RememberedPredictions:
    """Earlier results of `predictions` for one kernel, dtype and options on one device model."""

    def __init__(
        self,
        kernel: Kernel,
        limits: Limits,
        retracted: int,
        ids: Iterable[int],
        shipped: Callable[[int, Problem], Sequence[Record]] = lambda *_: (),
    ) -> None:
        """`ids`: of the best rows, the newest first. `retracted`: as `count_retracted` counts them.

        `shipped`: the shipped records that help with such a problem beside so many tuned shapes.
        """
        self._kernel, self._limits, self._retracted, self._shipped = kernel, limits, retracted, shipped
        self._ids = tuple(int(i) for i in islice(ids, MOST_SHAPES))
        self._helpers: int | None = None
        self._says_nothing = False

    def answer(self, problem: Problem) -> tuple[bool, Prediction | None]:
        """Whether `predictions` has an earlier result for the problem, and that result."""
        if self._says_nothing:
            return True, None
        if self._helpers is None:  # the same for all problems that it is asked about
            shipped = self._shipped(len(self._ids), problem)
            self._says_nothing = not enough(max(len(self._ids), len(shipped)))
            self._helpers = _helpers(shipped)
            return self.answer(problem)
        series = _series(self._kernel, self._limits, problem, self._retracted, self._helpers)
        is_known, fitted, prediction = _PREDICTORS.known(series, self._ids, problem)
        self._says_nothing = fitted is not None and fitted.predictor is None
        return is_known, prediction


def _helpers(shipped: Sequence[Record]) -> int:
    """A number that tells sets of shipped records of one kernel apart."""
    return hash(tuple((record.shipped, record.problem) for record in shipped))


def _series(kernel: Kernel, limits: Limits, like: Problem, retracted: int, helpers: int) -> Hashable:
    # A superseded best that is retracted leaves those that stand as they were, but the fits to its study have its time.
    axes = (*(axis for axis, _ in like.sizes), *like.rules)
    sources = tuple(source_keys(kernel).values())
    return kernel.name, sources, limits, like.dtype, like.option_items, axes, retracted, helpers


def _may_stand_in(session: Session, older: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether an older fit may answer for now: only newer bests were added since.

    What is gone was superseded by one of them, or fell off the end; a retracted best must not be predicted from.
    """
    known, now = set(older), set(ids)
    if not known:
        return True  # it rests on shipped records alone
    if known.isdisjoint(now) or any(new <= max(known) for new in now - known):
        return False  # of another device model, or of an environment that somebody insisted on
    oldest = min(now) if len(now) == MOST_SHAPES else 0
    gone = [row for row in known - now if row >= oldest]
    best = models.BestConfiguration
    superseded = select(func.count()).where(
        best.id.in_(gone), best.superseded_by_id.is_not(None), best.retracted_at.is_(None)
    )
    return not gone or session.scalar(superseded) == len(gone)


def _fitted(
    session: Session, kernel: Kernel, limits: Limits, ids: Sequence[int], shipped: Sequence[Record]
) -> tuple[Predictor | None, int]:
    own = _records(session, kernel, ids) if ids else []
    records = [*own, *undisplaced(shipped, own, lambda record: dict(kernel.plain(record.problem).sizes))]
    trials = sum(len(record.times_ms) for record in records)
    return Predictor(kernel, limits, records) if enough(len(records)) else None, trials


def _records(session: Session, kernel: Kernel, ids: Sequence[int]) -> list[Record]:
    """The measured trials behind these best rows, as today's sources got them; of one problem the newest study."""
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
        """Takes one trial."""
        if time_ms is None:
            self.failed.add(configuration)
        elif configuration not in self.failed:
            self.times_ms[configuration] = time_ms
            if registers:
                self.registers[configuration] = registers

    def record(self, problem: Problem, origin: str | None) -> Record:
        """As a predictor takes them."""
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
