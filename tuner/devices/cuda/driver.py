"""CUDA's driver by ctypes, for what PyCUDA does not offer, or not in contexts and on streams made by others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from tilewright.tuner.errors import NoDeviceError, TunerError

INVALID_VALUE = 1
"""CUDA_ERROR_INVALID_VALUE."""

NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: what the driver says in a process that was forked from one that had used it."""


class DriverError(TunerError):
    """A call of the driver failed; the message has its name for the error, `status` its number."""

    def __init__(self, name: str, status: int) -> None:
        self.status = status
        super().__init__(f"{name}: {_error_name(status)}")


@cache
def driver() -> ctypes.CDLL:
    """The driver's library; raises NoDeviceError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoDeviceError("there is no CUDA driver (libcuda.so.1) on this machine") from error


def function(name: str) -> Callable[..., int]:
    """The driver's function of that name, which returns a status; raises NoDeviceError where the driver is too old."""
    try:
        found: Callable[..., int] = getattr(driver(), name)
    except AttributeError as error:
        raise NoDeviceError(f"this CUDA driver has no {name}; a driver for CUDA 12 or later is needed") from error
    return found


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver; raises DriverError for any status but success."""
    status = function(name)(*arguments)
    if status:
        raise DriverError(name, status)


def _error_name(status: int) -> str:
    text = ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else str(status)
