"""Work in a thread beside the program's, which hardly notices it: neither when it begins nor while it goes on."""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable

from tilewright.tuner.forks import ForkSafeLock

SWITCH_S = 1e-4
"""How long a thread waits for the interpreter while there is such work: Python's own 5 ms are those of 100 launches,
and PyTorch lets go of the interpreter in each operator."""


class Beside:
    """Work that has begun in a thread; unlike a threading.Thread, it is not waited for to start.

    A forked child has no such thread: there it is over. Exceptions of the work are reported as unraisable ones: no
    caller can catch them.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._process, self._running = os.getpid(), _thread.allocate_lock()
        self._running.acquire()
        _brief.begin()
        try:
            _thread.start_new_thread(self._run, (work,))
        except RuntimeError:  # no thread can be had
            self._over()
            raise

    def is_running(self) -> bool:
        """Whether the work goes on."""
        return self._running.locked() and os.getpid() == self._process

    def wait(self) -> None:
        """Waits until the work is over."""
        if os.getpid() == self._process:
            with self._running:
                pass

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            self._over()

    def _over(self) -> None:
        _brief.end()
        self._running.release()


class _Brief:
    """Keeps the interpreter's switch interval short as long as anything needs it; a shorter one stays."""

    def __init__(self) -> None:
        self._lock, self._count, self._usual_s = ForkSafeLock(), 0, 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._usual_s = sys.getswitchinterval()
                if self._usual_s > SWITCH_S:
                    sys.setswitchinterval(SWITCH_S)
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._usual_s > SWITCH_S:
                sys.setswitchinterval(self._usual_s + 5e-7)  # Python cuts off what is less than a microsecond


_brief = _Brief()
