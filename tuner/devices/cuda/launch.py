"""Launches by the driver's cuLaunchKernelEx: PyCUDA has no attributes of launches, and no streams of others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.kernels.variant import Launch
from tilewright.tuner.devices.cuda.driver import INVALID_VALUE, DriverError, call, driver
from tilewright.tuner.devices.cuda.tensor_map import MapCells

_OVERLAPS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_ATTRIBUTES = {"SHARED_SIZE_BYTES": 1, "NUM_REGS": 4, "BINARY_VERSION": 6, "MAX_DYNAMIC_SHARED_SIZE_BYTES": 8}
_FIRST_TO_OVERLAP = 90  # compute capability, as BINARY_VERSION says it


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, for values that are a number."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


_OVERLAPPING = (_Attribute * 1)(_Attribute(_OVERLAPS, 0, 1))


class LaunchConfig(ctypes.Structure):
    """The structure CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def attribute_of(handle: ctypes.c_void_p, name: str) -> int:
    """An attribute of a loaded function by its CUDA name."""
    value = ctypes.c_int()
    call("cuFuncGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], handle)
    return value.value


def config_of(handle: ctypes.c_void_p, launch: Launch, stream: int = 0) -> LaunchConfig:
    """The geometry of that function's launch in the driver's words."""
    overlaps = launch.overlaps and attribute_of(handle, "BINARY_VERSION") >= _FIRST_TO_OVERLAP
    attributes = ctypes.addressof(_OVERLAPPING) if overlaps else None
    return LaunchConfig(launch.grid, launch.block, launch.shared_bytes, stream, attributes, int(overlaps))


class DriverModule:
    """A cubin loaded in the current context, for as long as this lives."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(self._handle), cubin)

    def function(self, entry: str, max_dynamic_shared_bytes: int = 0) -> DriverFunction:
        """The function of that name."""
        handle = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(handle), self._handle, entry.encode())
        if max_dynamic_shared_bytes:
            limit = _ATTRIBUTES["MAX_DYNAMIC_SHARED_SIZE_BYTES"]
            call("cuFuncSetAttribute", handle, limit, max_dynamic_shared_bytes)
        return DriverFunction(self, handle)

    def constant(self, symbol: str, size_bytes: int) -> int:
        """The address of that array in constant memory; raises DriverError where there is none of that size."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self._handle, symbol.encode())
        if size.value < size_bytes:
            raise DriverError(f"{symbol} has {size.value} bytes and gets {size_bytes}", INVALID_VALUE)
        return address.value

    def __del__(self) -> None:
        """Unloads it; a context that is gone has done so already."""
        if self._handle:
            driver().cuModuleUnload(self._handle)


class DriverFunction:
    """A function of a loaded module, which it keeps loaded."""

    def __init__(self, module: DriverModule, handle: ctypes.c_void_p) -> None:
        self._module, self._handle = module, handle

    def attribute(self, name: str) -> int:
        """A function attribute by its CUDA name."""
        return attribute_of(self._handle, name)

    def bound(
        self, launch: Launch, letters: str, values: Sequence[Any], stream: int, maps: MapCells | None = None
    ) -> Callable[[], None]:
        """A call that enqueues it with these arguments, whose types `letters` name as NumPy does (P: a pointer).

        `maps`, encoded already, come behind them.
        """
        config = config_of(self._handle, launch, stream)
        cells: list[Any] = [
            np.ctypeslib.as_ctypes_type(letter)(value) for letter, value in zip(letters, values, strict=True)
        ]
        places = [*(ctypes.addressof(cell) for cell in cells), *(maps.places if maps else ())]
        pointers = (ctypes.c_void_p * len(places))(*places)

        def enqueue() -> None:
            _ = cells, maps  # which `pointers` points to
            call("cuLaunchKernelEx", ctypes.byref(config), self._handle, pointers, None)

        return enqueue
