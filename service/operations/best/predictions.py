"""Predicts the best configuration of an untuned shape from the trials of tuned ones.

A fit to many shapes takes seconds. It is made once: this process keeps the last few predictors, and the database keeps
the fits and what was predicted from them, by a hash of the records, so that no other process and no restart makes them
again.
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
from functools import cached_property
from typing import Any

from sqlalchemy import Executable, cast, delete, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import SQLAlchemyError

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.best.records import records_of
from tilewright.service.operations.best.rows import TunedShapes, count_retracted
from tilewright.service.operations.staleness.standing import source_keys
from tilewright.service.operations.transaction import Reading, refuse_in_transaction
from tilewright.service.store import models
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.record import Prediction, Record, enough
from tilewright.tuner.predict.shipped import undisplaced
from tilewright.tuner.predict.stored_fit import packed, prediction_document, prediction_of, records_hash, unpacked

logger = logging.getLogger(__name__)

MOST_SHAPES = 300
"""How many tuned shapes, the newest, a predictor is fitted to: fitting to so many takes about two seconds."""

KEPT_PREDICTORS, KEPT_PREDICTIONS = 8, 16_384
"""The most a process keeps: a predictor of 60 shapes of gemm takes 35 to 45 MB, most of it the matrix."""

KEPT_FITS = 2
"""Fits that the database keeps of a kernel, dtype and options on one device model, the newest, of some 13 MB each."""

MOST_STORED = 4096
"""Predictions that the database keeps of a fit, of some 400 bytes each."""

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
        """A key that is equal for series whose fits are interchangeable."""
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

    predictors: OrderedDict[Hashable, KeptPredictor | None] = field(default_factory=OrderedDict)
    predictions: OrderedDict[Hashable, Prediction | None] = field(default_factory=OrderedDict)

    def keep_predictor(self, key: Hashable, predictor: KeptPredictor | None) -> None:
        """Keeps the predictor instead of the one least recently used."""
        self.predictors[key] = predictor
        while len(self.predictors) > KEPT_PREDICTORS:
            self.predictors.popitem(last=False)

    def keep_prediction(self, key: Hashable, prediction: Prediction | None) -> None:
        """Keeps the prediction instead of the one least recently used."""
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
    is_rough: bool = False,
) -> dict[Problem, Prediction | None]:
    """The prediction of each problem, or None where the tuned and the shipped shapes allow none.

    `asked` says of each problem which configurations it admits, `tuned` holds the best rows of the device model. Each
    of its shapes takes the place of the nearest shipped one. `until`: from this moment of `time.monotonic` on, no
    further prediction is begun, except for a first one; the nearest to what is tuned are made first, the others are
    left out. `is_stored`: whether the fit and the predictions are kept in the database. `is_rough`: as
    `Predictor.predict` has it; such predictions are not kept.
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
        made: dict[Problem, Prediction | None] = {
            problem: known
            for problem, admits in asked.items()
            if (known := predictor.stored(problem, admits)) is not None
        }
        left = [problem for problem in asked if problem not in made]
        for problem in predictor.fitted.nearest_first(left) if until is not None and left else left:
            if until is not None and made and time.monotonic() >= until:
                break
            if is_rough:
                made[problem] = predictor.fitted.predict(problem, asked[problem], is_rough=True)
            else:
                made[problem] = _prediction((key, problem), predictor.fitted, problem, asked[problem])
        if not is_rough:
            predictor.store({problem: made[problem] for problem in left if problem in made})
    return made


def _prediction(key: Hashable, predictor: Predictor, problem: Problem, admits: Admits) -> Prediction | None:
    if key in _KEPT.predictions:
        _KEPT.predictions.move_to_end(key)
        return _KEPT.predictions[key]
    prediction = predictor.predict(problem, admits)
    _KEPT.keep_prediction(key, prediction)
    return prediction


class KeptPredictor:
    """A predictor of these records, fitted when it is needed, and the predictions that the database keeps of its
    fit.
    """

    def __init__(self, reading: Reading, series: Series, records: Sequence[Record], *, is_stored: bool) -> None:
        self._reading, self._series, self._records, self._is_stored = reading, series, records, is_stored
        self._digest = records_hash(series.kernel, series.limits, records)
        table, self._stored = models.Predictor, dict[str, Any]()
        if is_stored:
            with reading() as session:
                query = select(table.predictions).where(table.records_hash == self._digest)
                self._stored = dict(session.scalar(query) or {})

    @cached_property
    def fitted(self) -> Predictor:
        """The predictor, from the fit that the database keeps or fitted now."""
        return _fitted(self._reading, self._series, self._records, self._digest, is_stored=self._is_stored)

    def stored(self, problem: Problem, admits: Admits) -> Prediction | None:
        """The prediction, where it was stored and the problem still admits it."""
        document = self._stored.get(problem.hash)
        known = None if document is None else prediction_of(self._series.kernel, document)
        return known if known is not None and admits(known.configuration) else None

    def store(self, made: Mapping[Problem, Prediction | None]) -> None:
        """Stores these in the database, while there is room."""
        new = {problem.hash: prediction_document(one) for problem, one in made.items() if one is not None}
        if not new or not self._is_stored or len(self._stored) >= MOST_STORED:
            return
        self._stored |= new
        table = models.Predictor
        together = table.predictions.op("||")(cast(new, JSONB))
        _write(self._reading, update(table).where(table.records_hash == self._digest).values(predictions=together))


def _predictor(
    reading: Reading, series: Series, key: Hashable, ids: Sequence[int], shipped: Sequence[Record], *, is_stored: bool
) -> KeptPredictor | None:
    """The predictor of these records; None for too few trials."""
    if key in _KEPT.predictors:
        _KEPT.predictors.move_to_end(key)
        return _KEPT.predictors[key]
    kernel = series.kernel
    own: list[Record] = []
    if ids:
        with reading() as session:
            own = records_of(session, kernel, ids)
    records = [*own, *undisplaced(shipped, own, lambda record: dict(kernel.plain(record.problem).sizes))]
    predictor = KeptPredictor(reading, series, records, is_stored=is_stored) if enough(len(records)) else None
    _KEPT.keep_predictor(key, predictor)
    return predictor


def _fitted(reading: Reading, series: Series, records: Sequence[Record], digest: str, *, is_stored: bool) -> Predictor:
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
        row = insert(table).values(records_hash=digest, series=series.name, arrays=packed(predictor.fit))
        kept = select(table.records_hash).where(table.series == series.name).order_by(table.fitted_at.desc())
        older = delete(table).where(table.series == series.name, table.records_hash.not_in(kept.limit(KEPT_FITS)))
        _write(reading, row.on_conflict_do_nothing(), older)
    return predictor


def _write(reading: Reading, *statements: Executable) -> None:
    """Executes these in a transaction; a cache that cannot be written, as by a read-only role, is no error."""
    try:
        with reading() as session:
            for statement in statements:
                session.execute(statement)
    except (DatabaseUnavailableError, SQLAlchemyError) as error:
        logger.warning("A predictor or its predictions were not stored: %s", error)
