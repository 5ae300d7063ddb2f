"""Compilations that wait for a compiler: this machine's processes take the oldest, others may take from the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from tilewright.tuner.compile.compilation import Compilation, Compiled


@dataclass(eq=False)
class WaitingCompilation:
    """A compilation, and the future of those who asked for it; it is pending until a compiler here begins."""

    work: Compilation
    future: Future[Compiled] = field(default_factory=Future)

    def settle(self, compile_it: Callable[[], Compiled]) -> None:
        """Makes what `compile_it` returns or raises the future's result, unless the future was cancelled."""
        _settle(self.future, compile_it)


class Backlog:
    """The waiting compilations, oldest first. Everything here may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[WaitingCompilation] = deque()
        self._pending: dict[Compilation, Future[Compiled]] = {}

    def add(self, work: Compilation) -> tuple[Future[Compiled], bool]:
        """The compilation's future, and whether it is new: one that is pending is joined, not added again."""
        with self._lock:
            joined = self._pending.get(work)
            if joined is not None:
                return joined, False
            added = WaitingCompilation(work)
            self._pending[work] = added.future
            self._waiting.append(added)
        # Not under the lock: a compiler may have settled it, and then this calls at once.
        added.future.add_done_callback(lambda _: self._forget(work))
        return added.future, True

    def take_oldest(self) -> WaitingCompilation | None:
        """The oldest, which then no longer waits; None where none does."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def waiting(self) -> list[WaitingCompilation]:
        """Those that nobody has taken or cancelled, oldest first."""
        with self._lock:
            return [each for each in self._waiting if not each.future.cancelled()]

    def claim(self, waiting: WaitingCompilation) -> bool:
        """Whether it still waited; the caller then has it, and settles it or gives it back."""
        with self._lock:
            try:
                self._waiting.remove(waiting)
            except ValueError:
                return False
        return True

    def give_back(self, claimed: WaitingCompilation) -> None:
        """Lets it wait again, as the oldest."""
        with self._lock:
            self._waiting.appendleft(claimed)

    def close(self) -> None:
        """Cancels what waits."""
        with self._lock:
            dropped, self._waiting = list(self._waiting), deque()
        for each in dropped:
            each.future.cancel()

    def _forget(self, work: Compilation) -> None:
        with self._lock:
            self._pending.pop(work, None)


def with_shared(own: Future[Compiled], shared: Future[Compiled]) -> Future[Compiled]:
    """The first with the cubin of the second in it, when both are there; to cancel it cancels the first."""
    both = Future[Compiled]()

    def settle(_: Future[Compiled]) -> None:
        _settle(both, lambda: replace(own.result(), shared=shared.result().cubin))

    own.add_done_callback(lambda _: shared.add_done_callback(settle))
    both.add_done_callback(lambda _: own.cancel() if both.cancelled() else None)
    return both


def _settle(future: Future[Compiled], compile_it: Callable[[], Compiled]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(compile_it())
    except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
        future.set_exception(error)
