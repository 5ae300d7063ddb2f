"""Compiling in several processes, behind a cache on disk: NVRTC is serial within a process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Empty, LifoQueue
from types import TracebackType
from typing import Self

from tilewright.tuner.child import Child
from tilewright.tuner.compile import MOST_WORKERS, nvrtc
from tilewright.tuner.compile.cache import CubinCache
from tilewright.tuner.compile.compilation import Compilation, Compiled
from tilewright.tuner.compile.compiler import compile_now
from tilewright.tuner.compile.triton import compile_triton
from tilewright.tuner.errors import NoCompilerError, TrialFailure
from tilewright.tuner.outcome import Outcome

_LAST_WORDS_S = 5.0
TIMEOUT_S = 120.0
"""The slowest kernel of the catalogue takes nvcc about 2 s; a source that unrolls without end takes for ever."""

NICENESS = 10
"""Workers fill every core; the process that measures, and the one that waits for it, must not queue behind them."""


_M_TRIM_THRESHOLD, _M_TOP_PAD = -1, -2  # glibc's mallopt
_KEPT_BYTES = 1 << 30
_GROWTH_BYTES = 32 << 20


class CompilePool:
    """Compiles up to `workers` configurations at a time; a worker that dies or hangs is replaced.

    Worker processes start when first needed and end with `close`, or when this process ends.
    """

    def __init__(
        self, workers: int | None = None, cache: CubinCache | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.workers = workers or max(1, min(len(os.sched_getaffinity(0)), MOST_WORKERS))
        self.cache, self.timeout_s = cache, timeout_s
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="compile")
        self._idle: LifoQueue[Child | None] = LifoQueue()
        for _ in range(self.workers):
            self._idle.put(None)  # a place for a worker that has not been started
        self._lock = threading.Lock()
        self._under_way: dict[Compilation, Future[Compiled]] = {}

    def start(self) -> None:
        """Starts every worker that is not there, in the background: Python and compiler take half a second to load."""
        self._threads.submit(self._start_all)

    def compile(self, work: Compilation) -> Compiled:
        """The cubin, from the cache (compile_ms 0) or a worker.

        Raises TrialFailure(COMPILE_FAILED) with the log, TrialFailure(TIMED_OUT), NoCompilerError.
        """
        return self.submit(work).result()

    def submit(self, work: Compilation) -> Future[Compiled]:
        """The same, as a future; a compilation already under way is joined, not started twice."""
        if work.shared is not None:
            shared = self.submit(work.shared)  # first: all configurations wait for it
            return with_shared(self.submit(replace(work, shared=None)), shared)
        with self._lock:
            under_way = self._under_way.get(work)
            if under_way is not None:
                return under_way
            future = self._under_way[work] = self._threads.submit(self._compile, work)
        # Not under the lock: it may have ended already, and then this calls at once.
        future.add_done_callback(lambda _: self._forget(work))
        return future

    def close(self) -> None:
        """Drops what has not begun, waits for what has, and ends the workers."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            child = self._idle.get()
            if child is not None:
                child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _forget(self, work: Compilation) -> None:
        with self._lock:
            self._under_way.pop(work, None)

    def _compile(self, work: Compilation) -> Compiled:
        key = work.key()
        cached = self.cache.get(key) if self.cache else None
        if cached is not None:
            return cached
        compiled = self._in_worker(work)
        if self.cache:
            self.cache.put(key, compiled)
        return compiled

    def _start_all(self) -> None:
        taken: list[Child | None] = []
        with contextlib.suppress(Empty):
            while True:
                taken.append(self._idle.get_nowait())
        for child in taken:
            started = child
            with contextlib.suppress(OSError):  # no process to be had: the first compilation tries again, and tells
                started = child or _started()
            self._idle.put(started)

    def _in_worker(self, work: Compilation) -> Compiled:
        child = self._idle.get()
        keep: Child | None = None
        was_killed = False
        try:
            # An idle worker may have been killed (out of memory, say) and nobody noticed: one more try with a new one.
            for _ in range(2):
                child = child or _started()
                try:
                    answer = self._ask(child, work)
                except (EOFError, OSError):
                    was_killed = child.join(_LAST_WORDS_S) == -signal.SIGKILL
                    child.kill()
                    child = None
                    continue
                keep = child
                if isinstance(answer, Compiled):
                    return answer
                raise answer
            if was_killed:
                reason = "the compiler's process was killed twice from outside, mostly for want of memory"
                raise TrialFailure(Outcome.INTERRUPTED, reason)
            raise TrialFailure(Outcome.COMPILE_FAILED, "the compiler's process died twice on this source")
        finally:
            self._idle.put(keep)

    def _ask(self, child: Child, work: Compilation) -> Compiled | TrialFailure | NoCompilerError:
        child.connection.send(work)
        if not child.connection.poll(self.timeout_s):
            child.kill()
            raise TrialFailure(Outcome.TIMED_OUT, f"the compiler was stopped after {self.timeout_s:.0f} s")
        answer: Compiled | TrialFailure | NoCompilerError = child.connection.recv()
        return answer


def serve(connection: Connection) -> None:
    """A worker: answers each compilation with its result or its failure, until the pipe closes."""
    os.nice(NICENESS)
    keep_freed_memory()
    nvrtc.is_available()  # loads it
    while True:
        try:
            work: Compilation = connection.recv()
            connection.send(_answer(work))
        except (EOFError, ConnectionError):
            return


def keep_freed_memory() -> bool:
    """Whether this process's C library now keeps what is freed, for the next compilation; False where it is not glibc.

    NVRTC frees some 15 MB after every compilation. Given back to the system, they come again page by page: 4,200 page
    faults a compilation of gemm's `register`, 400 like this, 12 ms of CPU time; the peak stays the same 110 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_M_TOP_PAD, _GROWTH_BYTES))


def with_shared(own: Future[Compiled], shared: Future[Compiled]) -> Future[Compiled]:
    """The first with the cubin of the second in it, when both are there; to cancel it cancels the first."""
    both = Future[Compiled]()

    def settle(_: Future[Compiled]) -> None:
        if not both.set_running_or_notify_cancel():
            return
        try:
            both.set_result(replace(own.result(), shared=shared.result().cubin))
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            both.set_exception(error)

    own.add_done_callback(lambda _: shared.add_done_callback(settle))
    both.add_done_callback(lambda _: own.cancel() if both.cancelled() else None)
    return both


def _started() -> Child:
    """A worker; one whose compiler hangs must not outlive the process that would have stopped it."""
    return Child(serve, dies_with_parent=True, is_confined=True)


def _answer(work: Compilation) -> Compiled | TrialFailure | NoCompilerError:
    try:
        return compile_triton(work) if work.compiler == "triton" else compile_now(work)
    except (TrialFailure, NoCompilerError) as error:
        return error
