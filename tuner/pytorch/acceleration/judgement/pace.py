"""The time limit of a decision, and a line that tells its progress."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

END = 0.9
"""The share of the limit at which the last rounds are over: the model is then left as was decided."""


class Pace:
    """A clock with a limit; `stream`: where the line is written, None for nowhere."""

    def __init__(
        self, limit_s: float, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_s, self._stream, self._clock = limit_s, stream, clock
        self._begun, self._width = clock(), 0
        self.left_out = 0  # operators that were not compared for want of time

    @property
    def used_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds until the end of the last rounds, at least 0."""
        return max(0.0, END * self.limit_s - self.used_s)

    def exclude(self, seconds: float) -> None:
        """Leaves so much time, which just passed, out of the count."""
        self._begun += seconds

    def tell(self, done: str) -> None:
        """Rewrites the line: the present step, the time so far, and how long the rest may take."""
        if self._stream is not None:
            words = f"accelerate: {done}; {self.used_s:.0f} s so far, at most {self.left_s:.0f} s more"
            self._write(words)

    def end(self) -> None:
        """Clears the line."""
        if self._width:
            self._write("")
            self._write("\r", width=0)

    def _write(self, words: str, *, width: int | None = None) -> None:
        if self._stream is not None:
            self._stream.write(words if width == 0 else f"\r{words.ljust(self._width)}")
            self._stream.flush()
            self._width = len(words) if width is None else width


def can_stop() -> bool:
    """Whether `within` can end a block: in the main thread only."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so long, if `can_stop` and the program has no earlier alarm."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {limit_s:.3g} s")

    alarm_s = signal.getitimer(signal.ITIMER_REAL)[0]
    if not can_stop() or 0 < alarm_s < limit_s:
        yield
        return
    before, begun = signal.signal(signal.SIGALRM, late), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(alarm_s - (time.monotonic() - begun), 1e-3) if alarm_s else 0)
        signal.signal(signal.SIGALRM, before)
