"""The first calls: the library's own run while ours is found and compiled, then both take turns and the faster stays.

Times come from events that nobody waits for. A call counts only where the GPU had not reached it when it had been
enqueued, so that its time has nothing of the host in it. A library is PyTorch or CuPy, whichever has made the arrays.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.turns.beside import Beside
from tilewright.tuner.turns.contest import Contest, Event, Timed, Verdict

Run = Callable[[Sequence[Any]], Any]


class Turns:
    """A call of one kind while two compete for it: it takes the arguments, and ours or the library's computes.

    `load` makes ours ready in a thread, while the library's own call runs; None: it is ready. `decided(verdict)` is
    called once. The contest may have other kinds of calls, of other sizes; `expected_ms`: what is expected of ours at
    this one.
    """

    def __init__(
        self,
        ours: Run,
        library: Run,
        contest: Contest,
        *,
        load: Callable[[], None] | None,
        decided: Callable[[Verdict], None],
        event: Callable[[], Event],
        expected_ms: float = 1.0,
    ) -> None:
        self.ours = ours
        self._library, self._contest, self._decided, self._event = library, contest, decided, event
        self._expected_ms = expected_ms
        self._loading = Beside(beside_captures(load)) if load is not None and contest.keeps_ours else None

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The result; raises TunerError before anything has run, where ours cannot be launched."""
        if not may_take_turns():
            return self.as_known(arguments)
        verdict = self._contest.settle()
        if verdict is not None and not verdict.is_ours:
            self._decided(verdict)
            return self._library(arguments)
        if self._loading is not None and self._loading.is_running():
            return self._library(arguments)
        if verdict is not None:
            self._decided(verdict)
            return self.ours(arguments)
        is_ours, counts = self._contest.next_is_ours()
        begin, end = self._event(), self._event()
        begin.record()
        result = self.ours(arguments) if is_ours else self._library(arguments)
        end.record()
        if counts and not begin.query():
            self._contest.add(Timed(is_ours, begin, end, self._expected_ms))
        return result

    def wait(self) -> None:
        """Waits until ours is loaded."""
        if self._loading is not None:
            self._loading.wait()

    def as_known(self, arguments: Sequence[Any]) -> Any:
        """The result by the side that the range's turns, the records or the caller prefer."""
        return self.ours(arguments) if self._contest.is_for_ours or wants_ours() else self._library(arguments)


class Search:
    """Runs the library's call while a thread looks for more; then `decide(arguments, error)` says what runs.

    It is called once, with the TunerError or KernelError of `find`, and returns None for the library's call.
    """

    def __init__(
        self, find: Callable[[], object], library: Run, decide: Callable[[Sequence[Any], Exception | None], Run | None]
    ) -> None:
        self._find, self._library, self._decide = find, library, decide
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._decision: tuple[Run | None] | None = None
        self._finding = Beside(self._run)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """The result; waits for the thread where calls may not differ from one to the next."""
        if self._finding.is_running() and may_take_turns():
            return self._library(arguments)
        self._finding.wait()
        with self._lock:
            if self._decision is None:
                self._decision = (self._decide(arguments, self._error),)
        return (self._decision[0] or self._library)(arguments)

    def _run(self) -> None:
        apart_from_captures()
        find = self._find
        del self._find  # it may keep the first call's arrays
        try:
            find()
        except Exception as error:  # noqa: BLE001 - what is not ours is raised again where it is decided
            self._error = error if isinstance(error, TunerError | KernelError) else None


class _Held(threading.local):
    count = 0
    ours = 0  # of them, how many want ours
    decides = False  # for all ranks


_HELD = _Held()


class held:  # noqa: N801 - used as a function; a generator takes three times as long
    """Lets nothing take turns in this thread in the block: a forward pass may be computed again, and must not differ.

    `ours`: the caller has compared times, or is about to, so that ours runs though it was predicted to be slower.
    """

    __slots__ = ("_ours",)

    def __init__(self, *, ours: bool = False) -> None:
        self._ours = ours

    def __enter__(self) -> Self:
        _HELD.count += 1
        _HELD.ours += self._ours
        return self

    def __exit__(self, *_: object) -> None:
        _HELD.count -= 1
        _HELD.ours -= self._ours


@contextmanager
def deciding() -> Iterator[None]:
    """Lets this thread's calls take turns though there are other ranks, which are told the outcome."""
    _HELD.decides = True
    try:
        yield
    finally:
        _HELD.decides = False


def wants_ours() -> bool:
    """Whether the caller in this thread has decided for ours."""
    return _HELD.ours > 0


def has_events(device: str) -> bool:
    """Whether calls on that device have times of their own: on a GPU."""
    return device != "cpu"


def may_take_turns() -> bool:
    """Whether calls may differ in their last bits from one to the next, and PyTorch captures nothing.

    With several ranks only in `deciding`.
    """
    if _HELD.count:
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    if torch.are_deterministic_algorithms_enabled() or _is_capturing(torch):
        return False
    distributed = torch.distributed
    return _HELD.decides or not (
        distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    )


def _is_capturing(torch: Any) -> bool:
    """Whether a graph is captured, by the function that `graph_capture` does not replace for a model's code."""
    return bool(torch.cuda.is_initialized() and torch.cuda.graphs.is_current_stream_capturing())


THREAD_LOCAL = 1
"""CUDA's capture mode in which only the calling thread's own capture forbids calls."""


def apart_from_captures() -> None:
    """No capture of another thread stops this one, or is spoilt by it, from here on."""
    from tilewright.tuner.devices.cuda.driver import call  # noqa: PLC0415 - there may be no driver

    with suppress(TunerError):
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(THREAD_LOCAL)))


def beside_captures(load: Callable[[], None]) -> Callable[[], None]:
    """`load` for a thread of its own: no capture of another thread stops it or is spoilt by it, and it raises nothing.

    The first launch reports failures.
    """

    def run() -> None:
        apart_from_captures()
        with suppress(TunerError, KernelError):
            load()

    return run
