"""Records reads and refusals beside the changes, where the settings ask for it; a thread writes them."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from sqlalchemy.exc import SQLAlchemyError
from starlette.types import Scope

from tilewright.service.api.middleware.request_log import QUIET
from tilewright.service.api.periodic_writes import PeriodicWrites
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.access import audit
from tilewright.service.operations.access.audit import AnsweredRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

logger = logging.getLogger(__name__)

MAX_BUFFERED = 10_000
"""Different requests held between two writes; more are left out, which is logged."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestRecord:
    """Counts answered requests by caller, route and status; safe for several threads."""

    def __init__(self) -> None:
        self._kinds = settings().record_requests
        self._counts: Counter[AnsweredRequest] = Counter()
        self._left_out = 0
        self._lock = threading.Lock()
        self._writes = PeriodicWrites("request record", self._write)

    def note(self, scope: Scope, method: str, route: str, status: int) -> None:
        """Counts a request that the settings want recorded; changes are recorded in their own transactions."""
        is_refused = 400 <= status < 500
        if self._kinds == "changes" or route in QUIET:
            return
        if not is_refused and (self._kinds == "refusals" or method not in _SAFE):
            return
        caller = scope.get("tilewright.caller")
        request = AnsweredRequest(caller.name if caller else "nobody", caller and caller.key_id, method, route, status)
        with self._lock:
            if request in self._counts or len(self._counts) < MAX_BUFFERED:
                self._counts[request] += 1
            else:
                self._left_out += 1

    def flush(self) -> None:
        """Writes the counts; raises DatabaseUnavailableError or SQLAlchemyError, and then has lost them."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            left_out, self._left_out = self._left_out, 0
        if left_out:
            logger.warning("%d reads and refusals were not recorded: too many different ones.", left_out)
        if counts:
            with transaction() as session:
                audit.record_requests(session, counts)

    def start(self) -> None:
        """Starts the writing thread, if anything is to be recorded."""
        if self._kinds != "changes":
            self._writes.start()

    def stop(self) -> None:
        """Ends the thread after a last write."""
        self._writes.stop()

    def _write(self) -> None:
        try:
            self.flush()
        except (DatabaseUnavailableError, SQLAlchemyError) as error:
            logger.warning("Reads and refusals of two seconds could not be recorded: %s", error)
