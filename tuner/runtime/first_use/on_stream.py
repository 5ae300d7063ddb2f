"""The check of a product behind its first launch, on the caller's stream: nobody waits for it, nothing is copied.

Memory is reserved with the launch plan. The verdict is a word of the host's memory that the GPU writes and a later call
reads, which takes no call of the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from tilewright.kernels.kernel import Kernel, Launch
from tilewright.kernels.problem import Problem
from tilewright.tuner.compile.cache import CubinCache, compiled_by, default_folder
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.devices.cuda.driver import DriverError, call
from tilewright.tuner.devices.cuda.launch import config_of
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse
from tilewright.tuner.runtime.first_use.product import (
    CHECKED_ON_STREAM,
    ROWS,
    ProductTask,
    definitions,
    source,
)
from tilewright.tuner.runtime.launches.contexts import allowed_while_capturing
from tilewright.tuner.runtime.memory.scratch import zeroed
from tilewright.tuner.runtime.memory.workspaces import capture_id

_THREADS = 256
_MAPPED = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP
_ENTRIES = ("keep_rows", "check_rows")


class _Verdict(ctypes.Structure):
    """The structure `Verdict` of rows.cu."""

    _fields_ = (
        ("state", ctypes.c_int),
        ("wrong", ctypes.c_uint),
        ("row", ctypes.c_int),
        ("column", ctypes.c_int),
        ("got", ctypes.c_double),
        ("expected", ctypes.c_double),
    )


class _Memory:
    """Memory of one check, on the device, and its verdict on the host. It is reused once the verdict was read.

    Its first `counters_bytes` are zero before and after a check; what follows is not.
    """

    def __init__(self, size_bytes: int, counters_bytes: int) -> None:
        self.size_bytes, self.counters_bytes = size_bytes, counters_bytes
        self.device = zeroed(size_bytes).address
        host, mapped = ctypes.c_void_p(), ctypes.c_uint64()
        with allowed_while_capturing():
            call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(ctypes.sizeof(_Verdict)), _MAPPED)
            call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), host, 0)
        self.verdict = _Verdict.from_address(host.value or 0)
        self.verdict_address = mapped.value
        self.verdict.state = 0


class _Reserve:
    """Memory that checks of one context gave back; freeing it would wait for the whole GPU."""

    def __init__(self) -> None:
        self._free: list[_Memory] = []
        self._lock = ForkSafeLock()

    def take(self, size_bytes: int, counters_bytes: int) -> _Memory:
        """Memory of at least that size with so many bytes of counters; raises TunerError where there is no room."""
        with self._lock:
            for one in self._free:
                if one.size_bytes >= size_bytes and one.counters_bytes == counters_bytes:
                    self._free.remove(one)
                    return one
        return _Memory(size_bytes, counters_bytes)

    def give_back(self, memory: _Memory) -> None:
        """Takes memory back whose verdict was read: nothing runs on it any more."""
        memory.verdict.state = 0
        with self._lock:
            self._free.append(memory)


@cache
def _reserve(_context_id: int) -> _Reserve:
    return _Reserve()


class _Step(NamedTuple):
    """A kernel of the check, and its geometry."""

    function: ctypes.c_void_p
    launch: Launch


class RowsCheck:
    """The check of one configuration in one context, which is current whenever this is used.

    `context_id`: what no other context of the process ever has; a handle may come back.
    """

    def __init__(self, kernel: Kernel, problem: Problem, use: FirstUse, context_id: int) -> None:
        self.use = use
        self.product = ProductTask(kernel, problem, use.place.limits.multiprocessors)
        arch = arch_of(use.place.limits.compute_capability)
        keep, judge = _functions(context_id, arch, tuple(sorted(definitions(kernel, problem).items())))
        columns = self.product.task.columns
        by_columns = Launch((-(-ROWS * columns // _THREADS), 1, 1), (_THREADS, 1, 1))
        by_tiles = Launch((self.product.tiles, self.product.slices, 1), (_THREADS, 1, 1))
        self.before = [_Step(keep, by_columns)] if self.product.reads_output else []
        self.after = [_Step(judge, by_tiles)]
        self._reserve = _reserve(context_id)
        self._memory: _Memory | None = self._taken()
        self._is_running = False
        self._lock = ForkSafeLock()

    def _taken(self) -> _Memory:
        return self._reserve.take(self.product.memory_bytes, self.product.counters_bytes)

    def turn_to(self, use: FirstUse) -> bool:
        """Makes the check serve that use of the product, and tells whether it does: not while a verdict is awaited."""
        if self.use is use:
            return True
        if self.is_under_way and not self.is_over:
            return False
        self.settle()
        self.use, self._is_running = use, False
        try:
            self._memory = self._taken()
        except TunerError as error:
            use.give_up(f"there is no memory to check it: {error}")
            return False
        return True

    def taken(self, stream: int) -> CheckedLaunch | None:
        """The check of the next launch on that stream; None if it is not to be checked, as in a graph."""
        memory = self._memory
        if memory is None or self.use.state != "waiting" or capture_id(stream) or not self.use.take():
            return None
        self._is_running = True
        return CheckedLaunch(self, memory, stream)

    def abandon(self, *, is_enqueued: bool) -> None:
        """Gives up the check of a launch that failed, so that another is checked, in memory that nothing writes to."""
        if is_enqueued:
            try:
                self._memory = self._taken()
            except TunerError as error:
                self.use.give_up(f"its launch failed, and there is no memory to check another: {error}")
                return
        self._is_running = False
        self.use.release()

    @property
    def is_under_way(self) -> bool:
        """Whether the check has seen a launch whose verdict nobody has read."""
        return self._is_running and self._memory is not None

    @property
    def is_over(self) -> bool:
        """Whether a verdict is there: this check's, or if it checks nothing, another one's."""
        if self._is_running and self.use.state in {"under way", "right"}:
            return self._memory is None or bool(self._memory.verdict.state)
        return self.use.state not in {"waiting", "under way"}

    def settle(self) -> bool:
        """Reads the verdict that is there; whether the configuration is right."""
        with self._lock:  # two threads may see one verdict
            memory, self._memory = self._memory, None
        if memory is not None and memory.verdict.state:
            found = memory.verdict
            where = (found.row, found.column) if found.wrong else ()
            finding = Finding(found.wrong, where, found.got, found.expected)
            self._reserve.give_back(memory)
            self.use.settle(finding)
        elif memory is not None and not self._is_running:  # something else has settled it
            self._reserve.give_back(memory)
        return self.use.state != "wrong"


class CheckedLaunch:
    """The check of one launch. Its kernels' arguments are its own, since other launches may be under way."""

    def __init__(self, check: RowsCheck, memory: _Memory, stream: int) -> None:
        self._check, self._memory, self._stream = check, memory, stream
        self._has_failed = False

    def before(self, addresses: Sequence[int], scalars: Sequence[float], rows: int | None = None) -> None:
        """Keeps rows of outputs that the launch will read, and its numbers; `rows` as in `of_launch`."""
        product = self._check.product
        self._task = product.of_launch(addresses, scalars, rows)
        product.of_memory(self._task, self._memory.device, self._memory.verdict_address)
        self._enqueue(self._check.before)

    def after(self) -> None:
        """Computes and judges the rows, behind the launch; does nothing if the rows could not be kept."""
        if not self._has_failed:
            self._enqueue(self._check.after)

    def abandon(self) -> None:
        """Gives the check up, because the launch failed."""
        self._check.abandon(is_enqueued=bool(self._check.before))

    def _enqueue(self, steps: Sequence[_Step]) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self._task))
        try:
            for step in steps:
                configuration = config_of(step.function, step.launch, self._stream)
                call("cuLaunchKernelEx", ctypes.byref(configuration), step.function, arguments, None)
        except DriverError as error:
            self._has_failed = True
            self._check.use.give_up(f"its check could not be launched: {error}")


def rows_check(kernel: Kernel, problem: Problem, use: FirstUse | None, context_id: int) -> RowsCheck | None:
    """The check of this first use, with its memory and code; None where there is nothing to check, or no way to."""
    if use is None or use.state not in {"waiting", "under way", "wrong"}:
        return None
    if kernel.name not in CHECKED_ON_STREAM:
        products = ", ".join(sorted(CHECKED_ON_STREAM))
        use.give_up(f"on a GPU `prepare` checks {kernel.name}; calls check only {products}")
        return None
    try:
        return RowsCheck(kernel, problem, use, context_id)
    except (TrialFailure, TunerError, LookupError, AttributeError) as error:
        use.give_up(f"its check cannot be made ready: {error}")
        return None


@cache
def _functions(context_id: int, arch: str, macros: tuple[tuple[str, str], ...]) -> tuple[ctypes.c_void_p, ...]:
    """The functions in that context, compiled once for a type on any machine."""
    del context_id  # that of the current context
    work = Compilation(source(), macros, arch, _ENTRIES[-1], default_compiler())
    cubin, module = compiled_by(CubinCache(default_folder()), work).cubin, ctypes.c_void_p()
    found = [ctypes.c_void_p() for _ in _ENTRIES]
    with allowed_while_capturing():
        call("cuModuleLoadData", ctypes.byref(module), cubin)
        for one, entry in zip(found, _ENTRIES, strict=True):
            call("cuModuleGetFunction", ctypes.byref(one), module, entry.encode())
    return tuple(found)
