"""Counts of each device model's results by state, for the metrics, at most once a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import select, text, true

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.cells import known_cells
from tilewright.service.operations.views.kernel_summaries import summaries, summary_of

BELIEVED_S = 60.0
PATIENCE_MS = 4000
"""Time limit of the statement: of a million results it takes longer, and then nothing is said of them."""


@dataclass
class ResultTally:
    """The newest counts, shared by all clients of this process."""

    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: Mapping[tuple[str, str], int] | None = None
    _seen_s: float = float("-inf")

    def look(self) -> Mapping[tuple[str, str], int] | None:
        """Results by device model and state, of the last minute; None where the database did not answer in time.

        States are those of the matrix, and `tuned`: all of them.
        """
        with self._lock:
            if self.clock() - self._seen_s >= BELIEVED_S:
                self._seen, self._seen_s = _counts(), self.clock()
            return self._seen


def _counts() -> Mapping[tuple[str, str], int] | None:
    try:
        with transaction() as session:
            session.execute(text(f"SET LOCAL statement_timeout = {PATIENCE_MS}"))
            found = summaries(session.scalar(select(summary_of(known_cells(session, [true()])))))
    except DatabaseUnavailableError:
        return None
    return {
        (one.device_model, state): count
        for one in found
        for state, count in [("tuned", one.tuned), *((status.value, n) for status, n in one.counts.items())]
    }
