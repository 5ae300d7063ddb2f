"""Counts demand in memory; a thread writes it to the database, so that no request waits for that."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from sqlalchemy.exc import SQLAlchemyError

from tilewright.service.api.periodic_writes import PeriodicWrites
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best_cache.shelf import CachedAnswer
from tilewright.service.operations.caller import Caller, Scope
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.transaction import transaction

logger = logging.getLogger(__name__)

COUNTED_EVERY_S = 60.0
"""An answer's max-age: a read-only caller counts once in this time per problem, so that one cannot outweigh many."""

MOST_OF_A_CALLER = 300
"""Problems that one caller counts for in such a minute: random shapes of one must not drive out what others need."""

MAX_BUFFERED = 10_000
"""Problems held between two writes, some 10 MB; beyond that the least recent are dropped."""

MAX_WRITTEN = 1000
"""Problems of one statement: it has seven parameters for each, and PostgreSQL takes 65,535."""

TUNED = frozenset({Match.EXACT, Match.RANGE})
"""Answers that nobody needs to tune for."""


class DemandBuffer:
    """Counts by problem and device model; safe for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: OrderedDict[tuple[str, RequestedProblem], float] = OrderedDict()
        self._minutes: OrderedDict[str, tuple[float, int]] = OrderedDict()  # by caller: since when, how many problems
        self._counts: OrderedDict[RequestedProblem, int] = OrderedDict()
        self._lock = threading.Lock()
        self._writes = PeriodicWrites("demand", self._write)

    def __len__(self) -> int:
        return len(self._counts)

    def note(
        self, answers: Iterable[BestAnswer | CachedAnswer], device_model: str | None, caller: Caller | None = None
    ) -> None:
        """Counts the answers that are neither exact nor from a table.

        `device_model`: the requested one; None: that of each answer.
        """
        for answer in answers:
            if answer.match not in TUNED:
                self.note_one(RequestedProblem.of(answer.problem, device_model or answer.device_model), caller)

    def note_one(self, problem: RequestedProblem, caller: Caller | None = None) -> None:
        """Counts one question that had no such answer."""
        if not self._is_left_out(problem, caller):
            self._add(problem, 1)

    def _is_left_out(self, problem: RequestedProblem, caller: Caller | None) -> bool:
        """Whether a read-only caller repeats the request while the earlier answer is still fresh, or a caller has
        asked about as many problems in this minute as are counted for one.
        """
        if caller is None or caller.scope is Scope.ADMIN:
            return False
        asked, now = (caller.name, problem), self._clock()
        with self._lock:
            last = self._asked.pop(asked, -math.inf)
            is_repeated = now - last < COUNTED_EVERY_S
            if not is_repeated and self._is_beyond(caller.name, now):
                return True
            self._asked[asked] = last if is_repeated else now
            if len(self._asked) > MAX_BUFFERED:
                self._asked.popitem(last=False)
        return is_repeated and caller.scope is Scope.READ

    def _is_beyond(self, name: str, now: float) -> bool:
        """Whether the caller's minute is full; else one more of its problems counts. The lock is held."""
        begun, count = self._minutes.pop(name, (now, 0))
        if now - begun >= COUNTED_EVERY_S:
            begun, count = now, 0
        is_beyond = count >= MOST_OF_A_CALLER
        self._minutes[name] = begun, count + (not is_beyond)
        if len(self._minutes) > MAX_BUFFERED:
            self._minutes.popitem(last=False)
        return is_beyond

    def _add(self, problem: RequestedProblem, times: int) -> None:
        with self._lock:
            self._counts[problem] = self._counts.pop(problem, 0) + times
            if len(self._counts) > MAX_BUFFERED:
                self._counts.popitem(last=False)

    def flush(self) -> int:
        """Writes the counts and returns how many; on DatabaseUnavailableError keeps those that were not written."""
        written = 0
        while True:
            with self._lock:
                taken = dict(self._counts.popitem(last=False) for _ in range(min(MAX_WRITTEN, len(self._counts))))
            if not taken:
                return written
            try:
                with transaction() as session:
                    demand.count(session, taken)
            except (DatabaseUnavailableError, SQLAlchemyError):
                for problem, times in taken.items():
                    self._add(problem, times)
                raise
            written += len(taken)

    def start(self) -> None:
        """Starts the thread that writes."""
        self._writes.start()

    def stop(self) -> None:
        """Ends the thread after a last write."""
        self._writes.stop()

    def _write(self) -> None:
        try:
            self.flush()
        except DatabaseUnavailableError as error:
            logger.warning("Demand could not be written and is kept for the next try: %s", error)
        except SQLAlchemyError:
            logger.exception(
                "Demand could not be written and is kept for the next try."
            )  # tables of another version: it must not end the loop
