"""The caller's CUDA contexts and memory: the current context, and the context of an address."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.tuner.devices.cuda.driver import call, function
from tilewright.tuner.runtime.errors import ContextError, WrongDeviceError
from tilewright.tuner.runtime.launches.gpu import start

_CONTEXT, _MEMORY_TYPE, _BUFFER_ID, _ORDINAL = 1, 2, 7, 9  # CUpointer_attribute
_HOST, _DEVICE, _UNIFIED = 1, 2, 4  # CUmemorytype
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

Allocation = tuple[tuple[Any, ...], ctypes.c_ulonglong, int]
"""A question to cuPointerGetAttribute, where its answer goes, and the id that it gave: no allocation gets one again."""


@dataclass(frozen=True)
class Memory:
    """The driver's facts about an address; zeros where there is no memory."""

    context: int
    kind: int
    ordinal: int


class Scratch:
    """The place where the driver writes the id of one thread's current context."""

    def __init__(self) -> None:
        self.context_id = ctypes.c_ulonglong()
        self.context_id_at = ctypes.byref(self.context_id)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


OF_THREAD = _OfThread()
"""`OF_THREAD.scratch` is the calling thread's own."""


@cache
def quick(name: str) -> Callable[..., int]:
    """A function of the driver that returns at once, called without letting go of Python's lock."""
    function(name)
    found: Callable[..., int] = getattr(ctypes.PyDLL("libcuda.so.1"), name)
    return found


def current_handle() -> int:
    """The current context's handle, 0 for none."""
    context = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(context))
    return context.value or 0


def current_id() -> int:
    """The number of the current context, which is unique in the process; a context's handle may be used again."""
    mine = OF_THREAD.scratch
    call("cuCtxGetId", None, mine.context_id_at)
    return mine.context_id.value


def current_ordinal() -> int | None:
    """The GPU of the current context; None where no context is current."""
    start()
    if not current_handle():
        return None
    device = ctypes.c_int()
    call("cuCtxGetDevice", ctypes.byref(device))
    return device.value


def launching_ordinal(only: int | None) -> int:
    """The GPU of the current context; raises WrongDeviceError where a launcher is for the GPU `only`."""
    ordinal = current_ordinal() or 0
    if only not in {None, ordinal}:
        raise WrongDeviceError(f"this launcher is for cuda:{only}, but the current context is on cuda:{ordinal}")
    return ordinal


def look_up(address: int) -> Memory:
    """Context, kind and GPU of that address."""
    context, kind, ordinal = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_int()
    answers = (ctypes.c_void_p * 3)(*(ctypes.addressof(cell) for cell in (context, kind, ordinal)))
    questions = (ctypes.c_int * 3)(_CONTEXT, _MEMORY_TYPE, _ORDINAL)
    call("cuPointerGetAttributes", 3, questions, answers, ctypes.c_uint64(address))
    return Memory(context.value or 0, kind.value, ordinal.value)


def allocation_of(address: int) -> Allocation:
    """The allocation that the address lies in; its question later tells whether it is still there.

    Memory that has no id, as some pools' has not, gets one that no answer is equal to.
    """
    number = ctypes.c_ulonglong()
    question = ctypes.byref(number), ctypes.c_int(_BUFFER_ID), ctypes.c_uint64(address)
    status = quick("cuPointerGetAttribute")(*question)
    return question, number, -1 if status else number.value


def check_memory(name: str, memory: Memory, context: int, ordinal: int) -> None:
    """Raises where the memory cannot be used in that context; memory of pools has a GPU but no context."""
    if memory.kind not in {_HOST, _DEVICE, _UNIFIED}:
        raise ContextError(f"{name}: its memory is gone: it was freed, or its CUDA context was destroyed")
    if memory.kind == _HOST:
        raise WrongDeviceError(f"{name} lies in the host's memory; the others are on a GPU")
    if memory.ordinal != ordinal:
        raise WrongDeviceError(
            f"{name} is on cuda:{memory.ordinal}, but the current context is on cuda:{ordinal}; "
            "launch where it is current (torch.cuda.device, cupy.cuda.Device)"
        )
    if memory.context not in {0, context}:
        raise ContextError(
            f"{name} belongs to another CUDA context than the current one; make that current first "
            "(PyCUDA: context.push()), or use one context for all arrays"
        )


@contextmanager
def context_of(name: str, address: int) -> Iterator[None]:
    """Makes the context of that memory current for a while; raises ContextError where it has none."""
    start()
    memory = look_up(address)
    check_memory(name, memory, memory.context, memory.ordinal)
    with pushed(memory.context or primary(memory.ordinal)):
        yield


@contextmanager
def pushed(context: int) -> Iterator[None]:
    """The context is current for a while."""
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@cache
def primary(ordinal: int) -> int:
    """The primary context of a GPU, the one of torch and CuPy; held from then on."""
    start()
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    return context.value or 0


@contextmanager
def allowed_while_capturing() -> Iterator[None]:
    """Allows, while this thread captures a CUDA graph, calls that are no part of it."""
    mode = ctypes.c_int(_RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
