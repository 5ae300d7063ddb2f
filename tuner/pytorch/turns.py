"""The first calls: PyTorch's own run while ours is found and compiled, then both take turns and the faster stays.

Times come from events that nobody waits for. A call counts only where the GPU had not reached it when it had been
enqueued, so that its time has nothing of the host in it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.contest import Contest, Event, Timed, Verdict

Run = Callable[[Sequence[Any]], Any]


class Turns:
    """What computes one kind of call until it is decided who does: called with its arguments.

    `load` makes ours ready in a thread, while PyTorch's own call runs. `decided(verdict)` is called once. The contest
    may have other kinds of calls, of other sizes; `expected_ms`: what is expected of ours at this one.
    """

    def __init__(
        self,
        ours: Run,
        pytorch: Run,
        contest: Contest,
        *,
        load: Callable[[], None],
        decided: Callable[[Verdict], None],
        expected_ms: float = 1.0,
        event: Callable[[], Event] = lambda: torch.cuda.Event(enable_timing=True),
    ) -> None:
        self.ours = ours
        self._pytorch, self._contest, self._decided, self._event = pytorch, contest, decided, event
        self._expected_ms = expected_ms
        self._loading = threading.Thread(target=beside_captures(load), daemon=True, name="tilewright-load")
        if contest.keeps_ours:
            self._loading.start()

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The result; raises TunerError before anything has run, where ours cannot be launched."""
        if not may_take_turns():
            return self.as_known(arguments)
        verdict = self._contest.settle()
        if verdict is not None and not verdict.is_ours:
            self._decided(verdict)
            return self._pytorch(arguments)
        if self._loading.is_alive():
            return self._pytorch(arguments)
        if verdict is not None:
            self._decided(verdict)
            return self.ours(arguments)
        is_ours, counts = self._contest.next_is_ours()
        begin, end = self._event(), self._event()
        begin.record()
        result = self.ours(arguments) if is_ours else self._pytorch(arguments)
        end.record()
        if counts and not begin.query():
            self._contest.add(Timed(is_ours, begin, end, self._expected_ms))
        return result

    def as_known(self, arguments: Sequence[Any]) -> Any:
        """The result by whom the range's turns or the records say, or who calls."""
        return self.ours(arguments) if self._contest.is_for_ours or _HELD.ours else self._pytorch(arguments)


class Search:
    """Runs PyTorch's call while a thread finds what else there is; then `decide(arguments, error)` says what runs.

    It is called once, with the TunerError or KernelError of `find`, and returns None for PyTorch's call.
    """

    def __init__(
        self, find: Callable[[], object], pytorch: Run, decide: Callable[[Sequence[Any], Exception | None], Run | None]
    ) -> None:
        self._find, self._pytorch, self._decide = find, pytorch, decide
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._decision: tuple[Run | None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="tilewright-find")
        self._thread.start()

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The result; waits for the thread where calls may not differ from one to the next."""
        if self._thread.is_alive() and may_take_turns():
            return self._pytorch(arguments)
        self._thread.join()
        with self._lock:
            if self._decision is None:
                self._decision = (self._decide(arguments, self._error),)
        return (self._decision[0] or self._pytorch)(arguments)

    def _run(self) -> None:
        try:
            self._find()
        except (TunerError, KernelError) as error:
            self._error = error


_is_capturing = torch.cuda.is_current_stream_capturing
"""PyTorch's own: a capture tells a model's code that there is none (`graph_capture`)."""


class _Held(threading.local):
    count = 0
    ours = 0  # of them, how many want ours


_HELD = _Held()


@contextmanager
def held(*, ours: bool = False) -> Iterator[None]:
    """Nothing takes turns in this thread: a forward pass may be computed again, and must not differ.

    `ours`: the caller has compared times, or is about to, so that ours runs though it was predicted to be slower.
    """
    _HELD.count += 1
    _HELD.ours += ours
    try:
        yield
    finally:
        _HELD.count -= 1
        _HELD.ours -= ours


def may_take_turns() -> bool:
    """Whether calls may differ in their last bits from one to the next, and nothing is captured."""
    if _HELD.count:
        return False
    if torch.are_deterministic_algorithms_enabled() or _is_capturing():
        return False
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


THREAD_LOCAL = 1
"""Of CUDA's modes of capture: the calling thread does what a capture of its own alone would forbid."""


def beside_captures(load: Callable[[], None]) -> Callable[[], None]:
    """The same for a thread of its own: no capture of another thread stops it or is spoilt, and it raises nothing.

    What failed, the first launch says.
    """

    def run() -> None:
        from tilewright.tuner.devices.cuda.driver import call  # noqa: PLC0415 - the launcher has imported it

        with suppress(TunerError):
            call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(THREAD_LOCAL)))
        with suppress(TunerError, KernelError):
            load()

    return run
