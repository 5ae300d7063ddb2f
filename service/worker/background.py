"""Background work in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """Works once, from `start` (or `with`) to `stop`; a process that ends does not wait for it."""

    def __init__(self, name: str, stop_s: float) -> None:
        """Prepares a thread; `stop` waits for its present work, `stop_s` seconds at most."""
        self._stopping = threading.Event()
        self._stop_s = stop_s
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present work."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def _work(self) -> None:
        """Returns soon after `_stopping` is set."""
