"""Tensor maps: what a source hands to the copy engine for a tensor, encoded by the driver for an address."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.family import Family
from tilewright.kernels.fields.arguments import Tensor
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.variant import TensorMap
from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.errors import TunerError

MAP_BYTES = 128
_ALIGNMENT = 64  # of a map in the host's memory, where the driver encodes it
_MOST_KEPT = 256  # addresses whose maps a cell remembers
_DATA_TYPES = {
    "int8": 0,
    "uint8": 0,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
}
_DATA_TYPES |= {"float64": 8, "bfloat16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTION_256 = 3  # a miss brings 256 bytes to the L2 cache, two steps of a row
"""CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion of cuda.h."""

MOST_STRIDE = 2**40  # bytes, as the driver takes them
GRAIN_BYTES = 16  # of addresses and strides


@dataclass(frozen=True)
class MapFields:
    """Arguments of cuTensorMapEncodeTiled beside an address: the innermost axis first, strides of all others."""

    data_type: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @classmethod
    def of(cls, declared: TensorMap, tensor: Tensor, problem: Problem) -> MapFields:
        """The fields of a tensor of the problem. Raises TunerError where rows or matrices do not begin at 16 bytes.

        An axis along which all share the same elements counts as one of length 1, whose coordinate is 0.
        """
        layout, dtype = tensor.layout(problem), tensor.dtype_for(problem)
        missing = len(declared.box) - len(layout.shape)
        shape, strides = (1,) * missing + layout.own_shape, (0,) * missing + layout.strides
        item_bytes, steps = ITEM_BYTES[dtype], list[int]()
        for size, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
            whole = steps[-1] * shape[-1 - len(steps)] if steps else item_bytes * shape[-1]
            # Along an axis of one element the driver only wants a number that would do.
            step = stride * item_bytes if size > 1 else -(-whole // GRAIN_BYTES) * GRAIN_BYTES
            if step % GRAIN_BYTES or not 0 < step < MOST_STRIDE:
                raise TunerError(f"{tensor.name} of {problem}: {step} bytes from a row to the next suit no tensor map")
            steps.append(step)
        return cls(_DATA_TYPES[dtype], shape[::-1], tuple(steps), declared.box[::-1], _SWIZZLES[declared.swizzle_bytes])


class MapCell:
    """The 128 bytes of one parameter, for one address at a time. Maps are kept by address."""

    def __init__(self, fields: MapFields) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        self.place = -(-ctypes.addressof(self._memory) // _ALIGNMENT) * _ALIGNMENT
        self._kept: dict[int, bytes] = {}
        self._sized = 0, 0
        rank = len(fields.sizes)
        self._told = (
            (ctypes.c_uint64 * rank)(*fields.sizes),
            (ctypes.c_uint64 * (rank - 1))(*fields.strides_bytes),
            (ctypes.c_uint32 * rank)(*fields.box),
            (ctypes.c_uint32 * rank)(*(1,) * rank),
        )
        self._data_type, self._rank, self._swizzle = fields.data_type, rank, fields.swizzle

    def encode(self, address: int) -> None:
        """Makes it the map of the tensor at that address. Raises DriverError."""
        found = self._kept.get(address)
        if found is not None:
            ctypes.memmove(self.place, found, MAP_BYTES)
            return
        start, place = ctypes.c_void_p(address), ctypes.c_void_p(self.place)
        how = 0, self._swizzle, _PROMOTION_256, 0  # not interleaved; zero for what lies outside
        call("cuTensorMapEncodeTiled", place, self._data_type, self._rank, start, *self._told, *how)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[address] = ctypes.string_at(self.place, MAP_BYTES)

    def encode_sized(self, address: int, axis: int | None, size: int) -> None:
        """Encodes the map of a tensor with that size along one axis: anew, as that is as quick as keeping it."""
        if (address, size) == self._sized:
            return
        if axis is not None:
            self._told[0][axis] = size
        start, place = ctypes.c_void_p(address), ctypes.c_void_p(self.place)
        how = 0, self._swizzle, _PROMOTION_256, 0
        call("cuTensorMapEncodeTiled", place, self._data_type, self._rank, start, *self._told, *how)
        self._sized = address, size


class SizedMapCells:
    """`MapCells` of a family: maps of any size of its axis, of which the last one is kept."""

    def __init__(self, kernel: Kernel, family: Family, maps: Iterable[TensorMap]) -> None:
        names = [tensor.name for tensor in kernel.tensors]
        self._cells = list[tuple[int, MapCell, int | None]]()
        for one in maps:
            place = names.index(one.tensor)
            small, large = (MapFields.of(one, kernel.tensors[place], family.at(size)) for size in (2, 3))
            varying = [axis for axis, (a, b) in enumerate(zip(small.sizes, large.sizes, strict=True)) if a != b]
            whole = MapFields.of(one, kernel.tensors[place], family.at(max(2, family.high)))
            self._cells.append((place, MapCell(whole), varying[0] if varying else None))
        self.places = [cell.place for _, cell, _ in self._cells]

    def encode(self, addresses: Sequence[int], size: int) -> None:
        """Sets the maps to the tensors at these addresses, of that size."""
        for place, cell, axis in self._cells:
            cell.encode_sized(addresses[place], axis, size)


class MapCells:
    """The parameters of a launch that are tensor maps: `places` says where they lie in the host's memory."""

    def __init__(self, kernel: Kernel, problem: Problem, maps: Iterable[TensorMap]) -> None:
        names = [tensor.name for tensor in kernel.tensors]
        declared = [(names.index(one.tensor), one) for one in maps]
        self._cells = [(i, MapCell(MapFields.of(one, kernel.tensors[i], problem))) for i, one in declared]
        self.places = [cell.place for _, cell in self._cells]

    def encode(self, addresses: Sequence[int]) -> None:
        """Sets the maps to the tensors at these addresses, one for each in the kernel's order."""
        for place, cell in self._cells:
            cell.encode(addresses[place])
