"""A thread that writes what a process has counted, so that no request waits for the database."""

from __future__ import annotations

import threading
from collections.abc import Callable

FLUSH_EVERY_S = 2.0
"""A process that is killed loses the counts of this long at most, and of the write under way."""

STOP_S = 5.0
"""How long a stopping process waits for its last write."""


class PeriodicWrites:
    """Calls `write`, which raises nothing, every FLUSH_EVERY_S and once more when it is stopped."""

    def __init__(self, name: str, write: Callable[[], None]) -> None:
        self._name, self._write = name, write
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after a last write."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _loop(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(FLUSH_EVERY_S)
            self._write()
