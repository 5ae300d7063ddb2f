"""Launches of a family on the CPU device: one library for all sizes that a configuration serves."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.tuner.devices.cpu.build import LIBRARY
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.any_size.geometry import Geometry
from tilewright.tuner.runtime.any_size.library import HostSizedLibrary, call_of_range
from tilewright.tuner.runtime.any_size.shortage import RangeLaunches
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.arrays.arguments import check_addresses
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.launches.host import builder_of_process, host_place, lock_of
from tilewright.tuner.runtime.memory.host import HostWorkspace


class HostFamilyLaunches(RangeLaunches["_SizedFunction | HostSizedLibrary"]):
    """Launches of one family on the CPU."""

    def __init__(self, kernel: Kernel, family: Family, source: RangeSource) -> None:
        super().__init__(kernel, family, source, host_place())

    def launch(self, call: SizedCall, _ordinal: int | None) -> None:
        """One launch on arrays at these addresses; raises ArgumentError for addresses that it must not run on."""
        check_addresses(self._kernel, self._family.exact(call.size), call.addresses)
        self.launch_size(call)

    def prepare(self, _ordinal: int) -> None:
        """Compiles and loads all ranges."""
        for number in range(len(self.ranges)):
            self._loaded(number)

    def launch_range(self, number: int, call: SizedCall) -> None:
        """One launch of that range's configuration; raises NoRoomError."""
        function = self._kernels[number] or self._loaded(number)
        function.launch(call.size, call.addresses, call.scalars)

    def _loaded(self, number: int) -> _SizedFunction | HostSizedLibrary:
        with self._lock:
            function = self._kernels[number]
            if function is None:
                choice, of_family = self.ranges.ranges[number].choice, (self._kernel, self._family)
                is_library = call_of_range(self._family, choice) is not None
                function = HostSizedLibrary(*of_family) if is_library else _SizedFunction(*of_family, choice)
                self._kernels[number] = function
            return function


class _SizedFunction:
    def __init__(self, kernel: Kernel, family: Family, choice: Choice) -> None:
        try:
            path, _ = builder_of_process().program(kernel, family.largest, choice.configuration, LIBRARY)
        except TrialFailure as failure:
            raise LaunchError(f"{kernel.name} {choice.configuration} does not compile: {failure.log}") from failure
        self._family, self._geometry = family, Geometry(kernel, family, choice.configuration)
        library = ctypes.CDLL(str(path))
        self._run, self._lock = library.host_library_launch, lock_of(str(path))
        self._types = [
            np.ctypeslib.as_ctypes_type(one.dtype_for(family.largest)) if isinstance(one, Scalar) else None
            for one in kernel.passed(family.largest)
        ]
        self._workspace = HostWorkspace()

    def launch(self, size: int, addresses: tuple[int, ...], scalars: tuple[float, ...]) -> None:
        launches, needed = self._geometry.launches(size), self._geometry.workspace_bytes(size)
        sizes = [extent for one in launches for extent in (*one.grid, *one.block)]
        tensors, numbers = iter(addresses), iter((*scalars, size))
        cells: list[ctypes._SimpleCData[Any]] = [
            ctypes.c_void_p(next(tensors)) if kind is None else kind(next(numbers)) for kind in self._types
        ]
        with self._lock:
            if needed:
                workspace = self._workspace.memory(needed)
                cells.append(ctypes.c_void_p(workspace.ctypes.data))
            values = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
            self._run((ctypes.c_uint * len(sizes))(*sizes), values)
