"""Arguments of a family's launches: made once, filled in for each size."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import SIZE_AT_LAUNCH, Kernel, Launch, TensorMap
from tilewright.tuner.devices.cuda.launch import config_of
from tilewright.tuner.devices.cuda.tensor_map import SizedMapCells
from tilewright.tuner.runtime.arrays.packed import PackedOperand


class SizedCall(NamedTuple):
    """One launch: its size, the addresses of its arrays, its numbers and its stream."""

    size: int
    addresses: tuple[int, ...]
    scalars: tuple[float, ...]
    stream: int
    packed: PackedOperand | None = None


class SizedArguments:
    """The words of cuLaunchKernelEx for each of a variant's launches, filled in anew for each: size and grids too."""

    def __init__(
        self,
        kernel: Kernel,
        family: Family,
        steps: Sequence[tuple[ctypes.c_void_p, Launch]],
        scratch: int,
        maps: Sequence[TensorMap] = (),
    ) -> None:
        count = len(kernel.tensors) + scratch
        self._pointers, self._pack = (ctypes.c_uint64 * count)(), struct.Struct(f"{count}Q").pack_into
        declared = kernel.scalars(family.largest)
        cells = {one.name: np.ctypeslib.as_ctypes_type(one.dtype_for(family.largest))() for one in declared}
        self._size = cells[SIZE_AT_LAUNCH]
        self._numbers = [cell for name, cell in cells.items() if name != SIZE_AT_LAUNCH]
        self._scalars: tuple[float, ...] = tuple(0.0 for _ in self._numbers)
        start = ctypes.addressof(self._pointers)
        place_of = {tensor.name: start + 8 * place for place, tensor in enumerate(kernel.tensors)}
        place_of |= {name: ctypes.addressof(cell) for name, cell in cells.items()}
        places = [place_of[argument.name] for argument in kernel.passed(family.largest)]
        places += range(start + 8 * len(kernel.tensors), start + 8 * count, 8)  # workspace, what is kept packed
        self._maps = SizedMapCells(kernel, family, maps)
        places += self._maps.places
        self._cells = cells  # what `places` points to
        self._configurations = [config_of(one, launch) for one, launch in steps]
        arguments = (ctypes.c_void_p * len(places))(*places)
        self.steps = [
            (ctypes.byref(configuration), one, arguments, None)
            for configuration, (one, _) in zip(self._configurations, steps, strict=True)
        ]
        self._launches: Sequence[Launch] = ()
        self._addresses: tuple[int, ...] = ()
        self._stream = 0

    def fill(self, call: SizedCall, addresses: tuple[int, ...], launches: Sequence[Launch]) -> None:
        """Fills in a launch: addresses with those of scratch memory last, numbers, size, stream and grids."""
        if addresses != self._addresses:
            self._pack(self._pointers, 0, *addresses)
            self._addresses = addresses
        self._maps.encode(addresses, call.size)
        self._size.value = call.size
        if call.scalars != self._scalars:
            self._scalars = call.scalars
            for cell, value in zip(self._numbers, call.scalars, strict=True):
                cell.value = value
        if launches is not self._launches:
            self._launches = launches
            for configuration, launch in zip(self._configurations, launches, strict=True):
                configuration.grid[:] = launch.grid
        if call.stream != self._stream:
            self._stream = call.stream
            for configuration in self._configurations:
                configuration.stream = call.stream
