"""A GPU's name and limits for the launcher, from the driver, without a context."""

from __future__ import annotations

import ctypes
from functools import cache

from tilewright.tuner.devices.cuda.driver import NOT_INITIALIZED, DriverError, call
from tilewright.tuner.devices.cuda.model import limits_of, slug_of
from tilewright.tuner.runtime.choice import TargetDevice
from tilewright.tuner.runtime.errors import ForkedError, WrongDeviceError
from tilewright.tuner.runtime.memory.room import limit_bytes

_ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1,
    "MAX_GRID_DIM_X": 5,
    "MAX_GRID_DIM_Y": 6,
    "MAX_GRID_DIM_Z": 7,
    "WARP_SIZE": 10,
    "MULTIPROCESSOR_COUNT": 16,
    "MAX_THREADS_PER_MULTIPROCESSOR": 39,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 81,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 82,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 106,
}
"""CUdevice_attribute of cuda.h, without the prefix."""


def start() -> None:
    """Makes the driver usable in this process; raises NoDeviceError, or ForkedError in a child of a user of CUDA."""
    try:
        call("cuInit", 0)
    except DriverError as error:
        if error.status == NOT_INITIALIZED:
            raise ForkedError(
                "this process was forked from one that used CUDA; start a new process instead: "
                'multiprocessing.get_context("spawn")'
            ) from error
        raise


def count() -> int:
    """How many GPUs this process may use."""
    start()
    number = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(number))
    return number.value


def driver_words() -> str:
    """The CUDA version that the driver supports; its own version would need NVML, which not every host has."""
    version = ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def gpu_place(ordinal: int) -> TargetDevice:
    """The GPU of that number, as CUDA counts those that are visible; raises WrongDeviceError where there is none."""
    return _place(ordinal, limit_bytes())


@cache
def _place(ordinal: int, most_workspace_bytes: int | None) -> TargetDevice:
    if not 0 <= ordinal < count():
        raise WrongDeviceError(f"there is no cuda:{ordinal}; this process sees {count()} GPUs")
    device, name, memory_bytes = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory_bytes), device)
    attributes = {}
    for word, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        attributes[word] = value.value
    return TargetDevice(slug_of(name.value.decode()), limits_of(attributes, memory_bytes.value), most_workspace_bytes)
