"""Predicts the best configuration of an untuned shape from the trials of tuned ones.

A fit to many shapes takes seconds. It is made once: this process keeps the last few predictors, and the database keeps
the fits, by a hash of the records that they were made to, so that no other process and no restart makes them again.
Nothing here holds a transaction open while it computes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.best.records import records_of
from tilewright.service.operations.best.rows import TunedShapes, count_retracted
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.operations.transaction import Reading, refuse_in_transaction
from tilewright.service.store import models
from tilewright.tuner.predict.predictor import Prediction, Predictor, Record, enough
from tilewright.tuner.predict.shipped import undisplaced
from tilewright.tuner.predict.stored_fit import packed, records_hash, unpacked

logger = logging.getLogger(__name__)

MOST_SHAPES = 300
"""How many tuned shapes, the newest, a predictor is fitted to: fitting to so many takes about two seconds."""

KEPT_PREDICTORS, KEPT_PREDICTIONS = 8, 16_384
"""The most a process keeps: a predictor of 60 shapes of gemm takes 35 to 45 MB, most of it the matrix."""

KEPT_FITS = 2
"""Fits that the database keeps of a kernel, dtype and options on one device model, the newest, of some 13 MB each."""

Admits = Callable[[Configuration], bool]


@dataclass(frozen=True)
class Series:
    """The problems of one predictor: a kernel with the sizes, dtype and options of `like` on one device model."""

    kernel: Kernel
    limits: Limits
    model_id: int | None  # None: of a device model that only shipped records know
    like: Problem

    @property
    def key(self) -> Hashable:
        """Equal for series whose fits are interchangeable."""
        axes = (*(axis for axis, _ in self.like.sizes), *self.like.rules)
        sources = tuple(source_keys(self.kernel).values())
        return self.kernel.name, sources, self.limits, self.model_id, self.like.dtype, self.like.option_items, axes

    @property
    def name(self) -> str:
        """A short text that tells the series apart whatever its sources: newer fits replace older ones of that name."""
        axes = [axis for axis, _ in self.like.sizes]
        words = (self.kernel.name, self.model_id, repr(self.limits), self.like.dtype, self.like.option_items)
        return hashlib.sha256(repr((*words, axes, self.like.rules)).encode()).hexdigest()


@dataclass
class Predictors:
    """The predictors and predictions that this process made last, by one thread at a time."""

    predictors: OrderedDict[Hashable, Predictor | None] = field(default_factory=OrderedDict)
    predictions: OrderedDict[Hashable, Prediction | None] = field(default_factory=OrderedDict)

    def keep_predictor(self, key: Hashable, predictor: Predictor | None) -> None:
        """Keeps it in place of the one that was used least recently."""
        self.predictors[key] = predictor
        while len(self.predictors) > KEPT_PREDICTORS:
            self.predictors.popitem(last=False)

    def keep_prediction(self, key: Hashable, prediction: Prediction | None) -> None:
        """The same for a prediction."""
        self.predictions[key] = prediction
        while len(self.predictions) > KEPT_PREDICTIONS:
            self.predictions.popitem(last=False)


_KEPT = Predictors()
_ALONE = threading.RLock()


def predictions(
    reading: Reading,
    series: Series,
    tuned: TunedShapes,
    asked: Mapping[Problem, Admits],
    *,
    shipped: Sequence[Record] = (),
    until: float | None = None,
    is_stored: bool = True,
) -> dict[Problem, Prediction | None]:
    """For each problem its prediction, or None where the tuned and the shipped shapes allow none.

    `asked` says of each problem which configurations it admits, `tuned` holds the best rows of the device model. Each
    of its shapes takes the place of the nearest shipped one. `until`: from this moment of `time.monotonic` on, no
    further prediction is begun, except for a first one; the nearest to what is tuned are made first, the others are
    left out. `is_stored`: whether the fit is kept in the database.
    """
    if not asked or not enough(max(len(tuned.ids), len(shipped))):
        return dict.fromkeys(asked)
    ids = tuple(int(i) for i in tuned.ids[:MOST_SHAPES])  # the newest come first
    with reading() as session:
        retracted = count_retracted(session, series.kernel.name, series.model_id)
    # A superseded best that is retracted leaves those that stand as they were, but fits to its study have its time.
    helpers = hash(tuple((record.shipped, record.problem) for record in shipped))
    key = (series.key, ids, retracted, helpers)
    refuse_in_transaction("a prediction")
    with _ALONE:
        predictor = _predictor(reading, series, key, ids, shipped, is_stored=is_stored)
        if predictor is None:
            return dict.fromkeys(asked)
        made: dict[Problem, Prediction | None] = {}
        for problem in predictor.nearest_first(list(asked)) if until is not None else asked:
            if until is not None and made and time.monotonic() >= until:
                break
            made[problem] = _prediction((key, problem), predictor, problem, asked[problem])
    return made


def _prediction(key: Hashable, predictor: Predictor, problem: Problem, admits: Admits) -> Prediction | None:
    if key in _KEPT.predictions:
        _KEPT.predictions.move_to_end(key)
        return _KEPT.predictions[key]
    prediction = predictor.predict(problem, admits)
    _KEPT.keep_prediction(key, prediction)
    return prediction


def _predictor(
    reading: Reading, series: Series, key: Hashable, ids: Sequence[int], shipped: Sequence[Record], *, is_stored: bool
) -> Predictor | None:
    """The predictor kept here, or by the fit kept in the database, or fitted now; None for too few trials."""
    if key in _KEPT.predictors:
        _KEPT.predictors.move_to_end(key)
        return _KEPT.predictors[key]
    kernel = series.kernel
    own: list[Record] = []
    if ids:
        with reading() as session:
            own = records_of(session, kernel, ids)
    records = [*own, *undisplaced(shipped, own, lambda record: dict(kernel.plain(record.problem).sizes))]
    predictor = _fitted(reading, series, records, is_stored=is_stored) if enough(len(records)) else None
    _KEPT.keep_predictor(key, predictor)
    return predictor


def _fitted(reading: Reading, series: Series, records: Sequence[Record], *, is_stored: bool) -> Predictor:
    digest = records_hash(series.kernel, series.limits, records)
    table = models.Predictor
    with reading() as session:
        stored = session.scalar(select(table.arrays).where(table.records_hash == digest)) if is_stored else None
    if stored is not None:
        return Predictor(series.kernel, series.limits, records, unpacked(stored))
    began_s = time.monotonic()
    predictor = Predictor(series.kernel, series.limits, records)
    seconds = time.monotonic() - began_s
    logger.info("Fitted a predictor of %s to %d shapes in %.1f s.", series.kernel.name, len(records), seconds)
    if is_stored:
        try:
            with reading() as session:
                _store(session, series.name, digest, packed(predictor.fit))
        except (DatabaseUnavailableError, SQLAlchemyError) as error:  # such as a role that may only read
            logger.warning("The predictor of %s was not stored: %s", series.kernel.name, error)
    return predictor


def _store(session: Session, series: str, digest: str, arrays: bytes) -> None:
    """Adds the fit; of those before it in the series the newest stay."""
    table = models.Predictor
    row = insert(table).values(records_hash=digest, series=series, arrays=arrays)
    session.execute(row.on_conflict_do_nothing())
    kept = select(table.records_hash).where(table.series == series).order_by(table.fitted_at.desc()).limit(KEPT_FITS)
    session.execute(delete(table).where(table.series == series, table.records_hash.not_in(kept)))
