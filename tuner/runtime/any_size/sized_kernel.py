"""One configuration of a family, loaded in one context, which is current whenever this is used."""

from __future__ import annotations

import ctypes

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.variant import KEPT_SUMMARY_BYTES
from tilewright.tuner.devices.cuda.driver import DriverError, call, function
from tilewright.tuner.runtime.any_size.geometry import Geometry
from tilewright.tuner.runtime.any_size.places import Places
from tilewright.tuner.runtime.any_size.words import SizedArguments, SizedCall
from tilewright.tuner.runtime.arrays.arguments import default_scalars
from tilewright.tuner.runtime.arrays.packed import KeptMemory, PackedOperand
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.launches.contexts import current_id
from tilewright.tuner.runtime.launches.loaded_kernel import MAX_DYNAMIC_SHARED_BYTES, load_functions
from tilewright.tuner.runtime.memory.shared import SharedWorkspaces
from tilewright.tuner.runtime.memory.workspaces import capture_id


class SizedKernel:
    """Launches of it. `use`: its first use, until that is decided."""

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

    def prepare(self, low: int, high: int) -> None:
        """Computes the grids of these sizes, and makes the default stream's workspace."""
        self.geometry.prepare(low, high)
        self._workspaces.reserve(max(map(self.geometry.workspace_bytes, (low, high))))

    def _needed(self, size: int) -> int:
        found = self._workspace_bytes.get(size)
        if found is None:
            found = self._workspace_bytes[size] = self.geometry.workspace_bytes(size)
        return found

    def pack(self, packed: PackedOperand, address: int, stream: int) -> None:
        """Packs the operand at that address, if this configuration keeps it packed and it is not packed yet."""
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
