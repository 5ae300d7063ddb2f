"""A process's cache of predictions: fitted predictors, and the answers that each gave.

Fitting to many shapes takes seconds, and every newly tuned shape asks for it. Where an older fit may stand in, it
answers until a thread has fitted the new one; a quick fit is made at once.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.transaction import transaction
from tilewright.tuner.predict.predictor import Prediction, Predictor

logger = logging.getLogger(__name__)

KEPT_PREDICTORS, KEPT_ANSWERS = 8, 4096
"""The most a process keeps: a predictor of 60 shapes of gemm takes 35 to 45 MB, most of it the matrix."""

QUICK_TRIALS = 500
"""A fit to no more is made while the caller waits: that takes some 100 ms, and to all of 60 shapes over two seconds."""

Ids = tuple[int, ...]
Fit = Callable[[Session], tuple[Predictor | None, int]]
"""The predictor, None where the trials allow none, and how many trials there were."""


@dataclass(frozen=True)
class Fitted:
    """A predictor, with the best rows and the number of trials that it was fitted to."""

    ids: Ids
    predictor: Predictor | None
    trials: int


class Predictors:
    """Predictors by the rows they were fitted to; safe for several threads. Those of one `series` are alike."""

    def __init__(self) -> None:
        self._fitted: OrderedDict[tuple[Hashable, Ids], Fitted] = OrderedDict()
        self._answers: OrderedDict[Hashable, Prediction | None] = OrderedDict()
        self._lock = threading.Lock()
        self._fitting: dict[tuple[Hashable, Ids], threading.Lock] = {}

    def fitted(
        self, session: Session, series: Hashable, ids: Ids, fit: Fit, may_stand_in: Callable[[Ids], bool]
    ) -> Fitted:
        """The predictor of these rows, or an older one that `may_stand_in` while another thread fits."""
        with self._lock:
            kept_fit = self._fitted.get((series, ids))
            if kept_fit is not None:
                self._fitted.move_to_end((series, ids))
                return kept_fit
            older = [kept for (its_series, _), kept in self._fitted.items() if its_series == series]
        for kept in reversed(older):  # the last used first
            if kept.trials > QUICK_TRIALS and may_stand_in(kept.ids):
                self._fit_apart(series, ids, fit)
                return kept
        return self._fit(series, ids, fit, session)

    def answer(
        self, series: Hashable, fitted: Fitted, asked: Hashable, predict: Callable[[Predictor], Prediction | None]
    ) -> Prediction | None:
        """The prediction for `asked`, made now where it was not made before."""
        if fitted.predictor is None:
            return None
        key = (series, fitted.ids, asked)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = predict(fitted.predictor)
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)
        return answer

    def known(self, series: Hashable, ids: Ids, asked: Hashable) -> tuple[bool, Fitted | None, Prediction | None]:
        """Whether `answer` need not predict, the fit to these rows, and the answer; returns at once."""
        key = (series, ids, asked)
        with self._lock:
            fitted = self._fitted.get((series, ids))
            if fitted is None or fitted.predictor is None:
                return fitted is not None, fitted, None
            is_known = key in self._answers
            if is_known:
                self._answers.move_to_end(key)
            return is_known, fitted, self._answers.get(key)

    def _fit(self, series: Hashable, ids: Ids, fit: Fit, session: Session | None) -> Fitted:
        """The predictor of these rows, fitted by the first who asks; others wait, who would fit the same."""
        key = (series, ids)
        with self._lock:
            lock = self._fitting.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._fitted:
                    return self._fitted[key]
            try:
                with transaction() if session is None else nullcontext(session) as reading:
                    made = Fitted(ids, *fit(reading))
                self._keep(key, made)
            finally:
                with self._lock:
                    self._fitting.pop(key, None)
            return made

    def _keep(self, key: tuple[Hashable, Ids], made: Fitted) -> None:
        with self._lock:
            self._fitted[key] = made
            large = [other for other, kept in self._fitted.items() if kept.predictor is not None]
            for oldest in large[:-KEPT_PREDICTORS]:
                del self._fitted[oldest]
            while len(self._fitted) > KEPT_ANSWERS:  # that there is no predictor is worth remembering, and small
                self._fitted.popitem(last=False)

    def _fit_apart(self, series: Hashable, ids: Ids, fit: Fit) -> None:
        """Starts to fit in a thread with its own session, unless that fit is already under way."""
        key = (series, ids)
        with self._lock:
            if key in self._fitting:
                return
            self._fitting[key] = threading.Lock()

        def work() -> None:
            try:
                self._fit(series, ids, fit, None)
            except (DatabaseUnavailableError, SQLAlchemyError) as error:
                logger.warning("predictions stay as they were: %s", error)

        threading.Thread(target=work, name="predictions", daemon=True).start()
