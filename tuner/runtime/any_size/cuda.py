"""Launches on GPUs of a family, whatever the size: loaded once in each context, with the ranges' configurations.

A launch of a size that was never seen costs what any launch costs: a search in a short array, grids that were computed
ahead or take microseconds, no compilation, no allocation.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import reduce
from operator import or_

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.variant import KEPT_SUMMARY_BYTES
from tilewright.tuner.compile.cache import CubinCache, default_folder
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import default_compiler
from tilewright.tuner.compile.pool import CompilePool
from tilewright.tuner.devices.cuda.driver import DriverError, call, function
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.any_size.geometry import Geometry
from tilewright.tuner.runtime.any_size.places import Places
from tilewright.tuner.runtime.any_size.shortage import RangeLaunches
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedArguments, SizedCall
from tilewright.tuner.runtime.arrays.arguments import ALIGNMENT, check_addresses, default_scalars
from tilewright.tuner.runtime.arrays.packed import KeptMemory, PackedOperand
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
from tilewright.tuner.runtime.launches.loaded_kernel import MAX_DYNAMIC_SHARED_BYTES, load_functions
from tilewright.tuner.runtime.memory.shared import SharedWorkspaces, shared_workspaces
from tilewright.tuner.runtime.memory.workspaces import capture_id


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
        """One launch in the current context, or where none is in the arrays' own. Raises LaunchError before it runs.

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
        """Compiles and loads what serves that size on that GPU; launches nothing. Raises LaunchError."""
        with pushed(primary(ordinal)):
            loaded = self.loaded()
            loaded.kernel_of(loaded.ranges.number(min(size, loaded.ranges.end)))

    def has_loaded(self, size: int, device: str) -> bool:
        """Whether what serves that size is loaded on that GPU."""
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


class LoadedFamily(RangeLaunches["SizedKernel"]):
    """A family in one context, which is current whenever this is used. A range is loaded when it is used first."""

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
        if kernel.use is None:
            kernel.launch(call)
        else:
            self._launch_checked(number, kernel, kernel.use, call)

    def prepare(self) -> None:
        """Loads all ranges; computes the grids of each within it."""
        self._compile_ahead()
        low = self._family.low
        for number, one in enumerate(self.ranges.ranges):
            kernel = self.kernel_of(number)
            kernel.geometry.prepare(low, one.high)
            self.workspaces.reserve(max(map(kernel.geometry.workspace_bytes, (low, one.high))))
            low = one.high + 1

    def _compile_ahead(self) -> None:
        """Compiles what is in no cache in several processes: a compiler does one thing at a time within a process."""
        arch, cache = arch_of(self.place.limits.compute_capability), CubinCache(default_folder())
        chosen = {one.choice.configuration for one in self.ranges.ranges if one.choice.cubin is None}
        compiler, largest = default_compiler(), self._family.largest
        works = [Compilation.of(self._kernel, largest, one, arch, compiler) for one in chosen]
        missing = [work for work in works if cache.get(work.key()) is None]
        if len(missing) > 1:
            with CompilePool(min(len(missing), len(os.sched_getaffinity(0))), cache) as pool:
                for compiled in [pool.submit(work) for work in missing]:
                    with suppress(TrialFailure, TunerError):  # what loads it says so
                        compiled.result()

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand for each range's configuration; those of one variant share what is kept."""
        for number in range(len(self.ranges)):
            self.kernel_of(number).pack(packed, address, stream)

    def kernel_of(self, number: int) -> SizedKernel:
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

    def _made(self, choice: Choice) -> SizedKernel:
        kernel = SizedKernel(self._kernel, self._family, choice, self.ordinal, self.workspaces)
        kernel.use = use = self._source.first_use(self._kernel, self._family, self.place, choice)
        if use is not None and (self._kernel.name, self._family.axis) not in CHECKED_AT_LAUNCH:
            use.give_up(f"no call checks {self._kernel.name} whose {self._family.axis} comes with the launch")
            kernel.use = None
        elif use is not None and self._check is None:
            self._check = rows_check(self._kernel, self._family.exact(self._family.high), use, current_id())
        return kernel

    def _launch_checked(self, number: int, kernel: SizedKernel, use: FirstUse, call: SizedCall) -> None:
        """A launch of a configuration that was not verified for the family: the first one with a check of its rows."""
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
            kernel = self._replaced(number)
        kernel.launch(call)

    def _replaced(self, number: int) -> SizedKernel:
        """The default in place of a configuration that was wrong."""
        default = self._source.default(self._kernel, self._family, self.place)
        with self._lock:
            self.ranges = self.ranges.replaced(number, default)
            kernel = self._kernels[number] = self._made(default)
        return kernel


class SizedKernel:
    """One configuration in one context. `use`: its first use, until that is decided."""

    def __init__(
        self, kernel: Kernel, family: Family, choice: Choice, ordinal: int, workspaces: SharedWorkspaces
    ) -> None:
        self.choice = choice
        self.use: FirstUse | None = None
        self._kernel, self._family, self._workspaces = kernel, family, workspaces
        self._variant, values = kernel.variant(choice.configuration.variant), choice.configuration.values
        problem = family.largest
        self._at_most = self._variant.most_at_once
        launches = self._variant.launches(kernel.entry, values, problem)
        packing = self._variant.packing_launches(kernel.entry, values, problem)
        functions = load_functions(kernel, problem, choice, ordinal, [name for name, _ in (*launches, *packing)])
        self._functions, self._packing = functions[: len(launches)], functions[len(launches) :]
        self._packing_launches = [step for _, step in packing]
        for loaded, (_, geometry) in zip(functions, launches, strict=False):
            if geometry.shared_bytes:
                call("cuFuncSetAttribute", loaded, MAX_DYNAMIC_SHARED_BYTES, geometry.shared_bytes)
        self.kept_bytes = self._variant.kept_bytes(problem)
        sizes = (problem.shape["n"], problem.shape["k"]) if self.kept_bytes else ()
        self._key = current_id(), choice.configuration.variant, *sizes, self.kept_bytes
        self.geometry = Geometry(kernel, family, choice.configuration)
        self._has_workspace = self._variant.workspace_bytes(values, problem) > 0
        self._workspace_bytes: dict[int, int] = {}
        self._places = Places(kernel, family)
        self._spare: list[SizedArguments] = []
        self._enqueue = function("cuLaunchKernelEx")

    def launch(self, call: SizedCall) -> None:
        """Launches that size, in panels where the variant asks for them."""
        try:
            words = self._spare.pop()
        except IndexError:
            words = self._words()
        if not self._at_most or call.size <= self._at_most:
            self._launch_panel(words, call)
        else:
            panels = self.geometry.panels(call.size)
            for number in range(panels.count):
                moved = self._places.moved(call.addresses, number * panels.size)
                rows = panels.last if number == panels.count - 1 else panels.size
                self._launch_panel(words, call._replace(size=rows, addresses=moved))
        self._spare.append(words)

    def _launch_panel(self, words: SizedArguments, call: SizedCall) -> None:
        addresses = call.addresses
        if self._has_workspace:
            addresses = (*addresses, self._workspaces.address(call.stream, self._needed(call.size)))
        if self.kept_bytes and call.packed is not None:
            addresses = (*addresses, self._kept(call.packed, addresses, call.stream))
        words.fill(call, addresses, self.geometry.launches(call.size))
        for step in words.steps:
            status = self._enqueue(*step)
            if status:
                raise LaunchError(f"{self._family.at(call.size)}: {DriverError('cuLaunchKernelEx', status)}")

    def _needed(self, size: int) -> int:
        found = self._workspace_bytes.get(size)
        if found is None:
            found = self._workspace_bytes[size] = self.geometry.workspace_bytes(size)
        return found

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand at that address, where this configuration keeps it packed and it is not yet."""
        if self.kept_bytes:
            names = [tensor.name for tensor in self._kernel.tensors]
            addresses = tuple(address if name == packed.name else 0 for name in names)
            if self._has_workspace:
                addresses = (*addresses, self._workspaces.address(stream, self._needed(self._family.low)))
            self._kept(packed, addresses, stream)

    def _kept(self, packed: PackedOperand, addresses: tuple[int, ...], stream: int) -> int:
        return packed.address(self._key, lambda: self._pack(packed, addresses, stream))

    def _pack(self, packed: PackedOperand, addresses: tuple[int, ...], stream: int) -> KeptMemory:
        if capture_id(stream):
            reason = "is not packed yet, and a CUDA graph is being captured"
            raise LaunchError(f"{packed.name} {reason}: call this launcher's pack({packed.name}) before the capture")
        memory, on = KeptMemory(self.kept_bytes), ctypes.c_void_p(stream)
        steps = list(zip(self._packing, self._packing_launches, strict=True))
        words = SizedArguments(self._kernel, self._family, steps, self._scratch)
        numbers = tuple(default_scalars(self._kernel, self._family.largest).values())
        call_of = SizedCall(self._family.low, (), numbers, stream)
        words.fill(call_of, (*addresses, memory.address), self._packing_launches)
        call("cuMemsetD8Async", ctypes.c_uint64(memory.address), 0, ctypes.c_size_t(KEPT_SUMMARY_BYTES), on)
        for step in words.steps:
            call("cuLaunchKernelEx", *step)
        call("cuStreamSynchronize", on)  # any stream may use it from here on
        return memory

    @property
    def _scratch(self) -> int:
        return self._has_workspace + bool(self.kept_bytes)

    def _words(self) -> SizedArguments:
        launches = self.geometry.launches(min(self._family.high, self._at_most or self._family.high))
        maps = self._variant.tensor_maps(self.choice.configuration.values, self._family.largest)
        steps = list(zip(self._functions, launches, strict=True))
        return SizedArguments(self._kernel, self._family, steps, self._scratch, maps)
