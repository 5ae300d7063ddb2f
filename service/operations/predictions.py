"""Predicted answers: what the trials of tuned shapes say of one that is not, kept until another shape is tuned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from threading import Lock
from typing import TypeVar

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best_rows import Tuned
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.study_rows import barred
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.predict import Prediction, Predictor, Record, enough

MOST_SHAPES = 300
"""Tuned shapes, the newest, that are predicted from: fitting to as many takes about two seconds."""

FEWEST_TRIALS = 8
"""Measured trials of a shape below which it says too little of the others to be predicted from."""

KEPT_PREDICTORS, KEPT_PREDICTIONS = 16, 4096
"""What a process keeps: a predictor takes about 5 MB, most of it the function's matrix."""


class Predictions:
    """Predictors by what they were fitted to, each with the answers that it gave; safe for several threads."""

    def __init__(self) -> None:
        self._predictors: OrderedDict[Hashable, Predictor | None] = OrderedDict()
        self._answers: OrderedDict[Hashable, Prediction | None] = OrderedDict()
        self._fitting, self._answering = Lock(), Lock()

    def predictor(self, key: Hashable, fit: Callable[[], Predictor | None]) -> Predictor | None:
        """The predictor of this key, fitted where it is not there; others wait, who would fit the same."""
        with self._fitting:
            return _kept(self._predictors, key, fit, KEPT_PREDICTORS)

    def answer(self, key: Hashable, predict: Callable[[], Prediction | None]) -> Prediction | None:
        """The prediction of this key, made where it is not there."""
        with self._answering:
            return _kept(self._answers, key, predict, KEPT_PREDICTIONS)


T = TypeVar("T")


def _kept(kept: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T], most: int) -> T:
    if key not in kept:
        kept[key] = make()
        while len(kept) > most:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


_PREDICTIONS = Predictions()


def predictions(
    session: Session,
    kernel: Kernel,
    limits: Limits,
    tuned: Tuned,
    asked: Mapping[Problem, Callable[[Configuration], bool]],
) -> dict[Problem, Prediction]:
    """A prediction for each problem where the tuned shapes allow one; all share dtype and options.

    `asked` says of each problem which configurations it admits, `tuned` holds the best rows of one device model.
    """
    if not asked or not enough(len(tuned.ids)):
        return {}
    ids = [int(i) for i in tuned.ids[:MOST_SHAPES]]  # the newest come first
    sources = tuple(kernel.source_hash(variant.name) for variant in kernel.variants)
    key = (kernel.name, sources, limits, tuple(ids))
    predictor = _PREDICTIONS.predictor(key, lambda: _fitted(session, kernel, limits, ids))
    if predictor is None:
        return {}
    found = {
        problem: _PREDICTIONS.answer((*key, problem), lambda p=problem, a=admits: predictor.predict(p, a))  # type: ignore[misc]
        for problem, admits in asked.items()
    }
    return {problem: prediction for problem, prediction in found.items() if prediction is not None}


def _fitted(session: Session, kernel: Kernel, limits: Limits, ids: Sequence[int]) -> Predictor | None:
    records = _records(session, kernel, ids)
    return Predictor(kernel, limits, records) if enough(len(records)) else None


def _records(session: Session, kernel: Kernel, ids: Sequence[int]) -> list[Record]:
    """The measured trials behind these best rows, as today's sources got them; of one problem the newest study."""
    best, trial = models.BestConfiguration, models.Trial
    rows = session.execute(
        select(best.id, models.Problem.shape, models.Problem.dtype, models.Problem.options, trial.study_id)
        .join(best.problem)
        .join(best.trial)
        .join(best.environment)
        .where(best.id.in_(ids))
        .order_by(models.Environment.origin.is_not(None), best.id.desc())  # measured here before imported
    ).all()
    studies: dict[Problem, int] = {}
    for row in rows:
        studies.setdefault(kernel.problem(row.shape, row.dtype, row.options), row.study_id)
    trials = _trials(session, kernel, set(studies.values()))
    return [
        Record(
            problem,
            {configuration: time_ms for configuration, time_ms, _ in trials[study]},
            {configuration: registers for configuration, _, registers in trials[study] if registers},
        )
        for problem, study in studies.items()
        if len(trials[study]) >= FEWEST_TRIALS
    ]


Tried = tuple[Configuration, float, int | None]


def _trials(session: Session, kernel: Kernel, studies: Collection[int]) -> dict[int, list[Tried]]:
    """By study what was measured, with its registers; less what fell in a job's finals."""
    trial = models.Trial
    current = kernel_variant_ids(session, kernel).values()
    rows = session.execute(
        select(trial.study_id, trial.configuration, trial.time_ms, trial.registers).where(
            trial.study_id.in_(studies), trial.kernel_variant_id.in_(current), trial.outcome == Outcome.MEASURED
        )
    )
    fallen = {study: barred(session, study) for study in _with_fallen(session, studies)}
    found: dict[int, list[Tried]] = {study: [] for study in studies}
    for row in rows:
        configuration = Configuration.from_json(row.configuration)
        if row.time_ms is not None and configuration not in fallen.get(row.study_id, ()):
            found[row.study_id].append((configuration, row.time_ms, row.registers))
    return found


def _with_fallen(session: Session, studies: Collection[int]) -> Sequence[int]:
    """Those of the studies in which a finalist failed at last."""
    job = models.TuningJob
    has_fallen = func.jsonb_array_length(func.coalesce(job.result["dropped"], literal([], JSONB))) > 0
    return [s for s in session.scalars(select(job.study_id).where(job.study_id.in_(studies), has_fallen)) if s]
