"""Launches on GPUs of a family, whatever the size: loaded once in each context, with the ranges' configurations.

A launch of a size that was never seen costs what any launch costs: a search in a short array, grids that were computed
ahead or take microseconds, no compilation, no allocation.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import or_

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.compile.cache import CubinCache, default_folder
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.runtime.any_size.library import SizedLibrary, call_of_range
from tilewright.tuner.runtime.any_size.places import Places
from tilewright.tuner.runtime.any_size.shortage import RangeLaunches
from tilewright.tuner.runtime.any_size.sized_kernel import SizedKernel
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.arrays.arguments import ALIGNMENT, check_addresses
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.first_use.on_stream import RowsCheck, rows_check
from tilewright.tuner.runtime.first_use.product import CHECKED_AT_LAUNCH
from tilewright.tuner.runtime.launches.contexts import (
    OF_THREAD,
    check_memory,
    context_of,
    current_handle,
    current_id,
    current_ordinal,
    launching_ordinal,
    look_up,
    primary,
    pushed,
    quick,
)
from tilewright.tuner.runtime.launches.gpu import gpu_place
from tilewright.tuner.runtime.launches.library_calls import refuse
from tilewright.tuner.runtime.memory.room import NoRoomError
from tilewright.tuner.runtime.memory.shared import SharedWorkspaces, shared_workspaces


class FamilyLaunches:
    """Launches of one family; `only` is the GPU's number where the caller named one."""

    def __init__(self, kernel: Kernel, family: Family, source: RangeSource, only: int | None = None) -> None:
        self._kernel, self._family, self._source, self._only = kernel, family, source, only
        self._loaded: dict[int, LoadedFamily] = {}
        self._trusted: set[tuple[int, int]] = set()
        self._lock = ForkSafeLock()
        self._ask_context = quick("cuCtxGetId")
        self._places = Places(kernel, family)

    def launch(self, call: SizedCall, ordinal: int | None) -> None:
        """Launches once in the current context, or in the arrays' own where none is. Raises LaunchError before it runs.

        `ordinal`: the GPU of arrays that keep their memory; None: somebody may have freed it, so the driver is asked.
        """
        mine = OF_THREAD.scratch
        if self._ask_context(None, mine.context_id_at):
            with context_of(self._kernel.tensors[0].name, call.addresses[0]):
                self.loaded()
                self.launch(call, ordinal)
            return
        context = mine.context_id.value
        loaded = self._loaded.get(context) or self.loaded()
        is_trusted = ordinal is not None and (context, ordinal) in self._trusted
        addresses = call.addresses
        is_odd = reduce(or_, addresses) % ALIGNMENT or 0 in addresses or self._places.meet(call.size, addresses)
        if not is_trusted or is_odd:
            check_addresses(self._kernel, self._family.exact(call.size), addresses)
            for tensor, address in zip(self._kernel.tensors, addresses, strict=True):
                check_memory(tensor.name, look_up(address), loaded.context, loaded.ordinal)
            if ordinal is not None:
                self._trusted.add((context, ordinal))
        loaded.launch_size(call)

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand at that address in the current context, for every configuration that keeps it packed."""
        if not current_handle():
            with context_of(packed.name, address):
                self.pack(packed, address, stream)
            return
        self.loaded().pack(packed, address, stream)

    def load(self, size: int, ordinal: int) -> None:
        """Compiles and loads the configuration for that size on that GPU; launches nothing. Raises LaunchError."""
        with pushed(primary(ordinal)):
            loaded = self.loaded()
            loaded.kernel_of(loaded.ranges.number(min(size, loaded.ranges.end)))

    def has_loaded(self, size: int, device: str) -> bool:
        """Whether the configuration for that size is loaded on that GPU."""
        here = [one for one in list(self._loaded.values()) if device == f"cuda:{one.ordinal}"]
        return any(one.has_loaded(one.ranges.number(min(size, one.ranges.end))) for one in here)

    def prepare(self, ordinal: int) -> None:
        """Compiles and loads all ranges for that GPU, computes grids, and makes the default stream's workspace."""
        if current_ordinal() == ordinal:
            self.loaded().prepare()
            return
        with pushed(primary(ordinal)):
            self.loaded().prepare()

    def loaded(self) -> LoadedFamily:
        """The family in the current context, loaded now where it is not yet."""
        mine = OF_THREAD.scratch
        self._ask_context(None, mine.context_id_at)
        number = mine.context_id.value
        with self._lock:
            if number not in self._loaded:
                ordinal = launching_ordinal(self._only)
                shared = shared_workspaces(number)
                self._loaded[number] = LoadedFamily(self._kernel, self._family, self._source, ordinal, shared)
            return self._loaded[number]


class LoadedFamily(RangeLaunches["SizedKernel | SizedLibrary"]):
    """A family in one context, which is current whenever this is used. A range is loaded at its first use."""

    def __init__(
        self, kernel: Kernel, family: Family, source: RangeSource, ordinal: int, workspaces: SharedWorkspaces
    ) -> None:
        super().__init__(kernel, family, source, gpu_place(ordinal))
        self.ordinal, self.context = ordinal, current_handle()
        self.workspaces = workspaces
        self._check: RowsCheck | None = None  # of all ranges, one after another: its memory is taken once

    def launch_range(self, number: int, call: SizedCall) -> None:
        """One launch of that range's configuration, checked where that is due; raises NoRoomError."""
        kernel = self._kernels[number] or self.kernel_of(number)
        if isinstance(kernel, SizedKernel) and kernel.use is not None:
            self._launch_checked(number, kernel, kernel.use, call)
            return
        try:
            kernel.launch(call)
        except (LibraryError, NoRoomError):
            if not isinstance(kernel, SizedLibrary):
                raise
            self._without_library(number).launch(call)

    def _without_library(self, number: int) -> SizedKernel | SizedLibrary:
        """The range's configuration in the place of the library's call, from now on."""
        with self._lock:
            choice = replace(self.ranges.ranges[number].choice, library_name=None)
            self.ranges, self._kernels[number] = self.ranges.replaced(number, choice), None
        return self.kernel_of(number)

    def prepare(self) -> None:
        """Loads all ranges; computes the grids of each within it."""
        self._compile_ahead()
        low = self._family.low
        for number, one in enumerate(self.ranges.ranges):
            self.kernel_of(number).prepare(low, one.high)
            low = one.high + 1

    def _compile_ahead(self) -> None:
        """Compiles what no cache has, in several processes: within a process a compiler does one thing at a time."""
        arch, cache = arch_of(self.place.limits.compute_capability), CubinCache(default_folder())
        missing_code = (one.choice for one in self.ranges.ranges if one.choice.cubin is None)
        chosen = {one.configuration for one in missing_code if call_of_range(self._family, one) is None}
        compiler, largest = default_compiler(), self._family.largest
        works = [Compilation.of(self._kernel, largest, one, arch, compiler) for one in chosen]
        missing = [work for work in works if cache.get(work.key()) is None]
        if len(missing) > 1:
            with CompilePool(min(len(missing), len(os.sched_getaffinity(0))), cache) as pool:
                for compiled in [pool.submit(work) for work in missing]:
                    with suppress(TrialFailure, TunerError):  # what loads it says so
                        compiled.result()

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand for each range's configuration; configurations of one variant share the result."""
        for number in range(len(self.ranges)):
            self.kernel_of(number).pack(packed, address, stream)

    def kernel_of(self, number: int) -> SizedKernel | SizedLibrary:
        """The range's kernel; its default where the configuration does not compile here. Raises LaunchError."""
        with self._lock:
            kernel = self._kernels[number]
            if kernel is None:
                choice = self.ranges.ranges[number].choice
                try:
                    kernel = self._made(choice)
                except LaunchError:
                    default = self._source.default(self._kernel, self._family, self.place)
                    if default.configuration == choice.configuration or choice.origin == "pinned":
                        raise
                    self.ranges = self.ranges.replaced(number, default)
                    kernel = self._made(default)
                self._kernels[number] = kernel
            return kernel

    def _made(self, choice: Choice) -> SizedKernel | SizedLibrary:
        name = call_of_range(self._family, choice)
        if name is not None:
            try:
                return SizedLibrary(self._kernel, self._family, name, self.ordinal, self.workspaces)
            except (LibraryError, LaunchError) as error:
                refuse(self._family.largest, name, error)
        kernel = SizedKernel(self._kernel, self._family, choice, self.ordinal, self.workspaces)
        kernel.use = use = self._source.first_use(self._kernel, self._family, self.place, choice)
        if use is not None and (self._kernel.name, self._family.axis) not in CHECKED_AT_LAUNCH:
            use.give_up(f"no call checks {self._kernel.name} whose {self._family.axis} comes with the launch")
            kernel.use = None
        elif use is not None and self._check is None:
            self._check = rows_check(self._kernel, self._family.exact(self._family.high), use, current_id())
        return kernel

    def _launch_checked(self, number: int, kernel: SizedKernel, use: FirstUse, call: SizedCall) -> None:
        """Launches a configuration that was not verified for the family; the first launch has its rows checked."""
        check, taken = self._check, None
        with self._lock:
            if check is not None and check.use is use and check.is_over:
                check.settle()
            if check is not None and use.state == "waiting" and check.turn_to(use):
                taken = check.taken(call.stream)
        if taken is not None:
            taken.before(call.addresses, call.scalars, call.size)
            try:
                kernel.launch(call)
            except BaseException:
                taken.abandon()
                raise
            taken.after()
            return
        if check is None or use.state not in {"waiting", "under way"}:
            kernel.use = None
        if use.state == "wrong":
            self._replaced(number).launch(call)
        else:
            kernel.launch(call)

    def _replaced(self, number: int) -> SizedKernel | SizedLibrary:
        """The default in place of a configuration that was wrong."""
        default = self._source.default(self._kernel, self._family, self.place)
        with self._lock:
            self.ranges = self.ranges.replaced(number, default)
            kernel = self._kernels[number] = self._made(default)
        return kernel
