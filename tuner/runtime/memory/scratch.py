"""Zeros on the device for launches: PyTorch's memory in a program that uses it, else the driver's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from tilewright.tuner.devices.cuda.driver import DriverError, call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.launches.contexts import allowed_while_capturing, current_handle, current_ordinal, pushed
from tilewright.tuner.runtime.memory.pytorch_pool import pool_here
from tilewright.tuner.runtime.memory.room import HOST, ROOM

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Scratch:
    """Memory that is counted until it is given back; `context` is the one that it lies in, 0 for the host's."""

    def __init__(self, address: int, size_bytes: int, ordinal: int, free: Callable[[int], None]) -> None:
        self.address, self.size_bytes = address, size_bytes
        self.context = 0 if ordinal == HOST else current_handle()
        self._ordinal, self._free = ordinal, free

    def give_back(self) -> None:
        """Frees it, when nothing runs on it any more; with its context it is gone already."""
        ROOM.give_back(self._ordinal, self.size_bytes)
        if self.context:
            with suppress(DriverError), allowed_while_capturing(), pushed(self.context):
                self._free(self.address)


class Holder(Protocol):
    """A holder of scratch memory that lasts from call to call."""

    def yielded(self) -> Iterable[Scratch]:
        """The memory that may be given back: launches do not use it from now on."""


_HOLDERS: WeakSet[Holder] = WeakSet()
_LOCK = ForkSafeLock()


def register(holder: Holder) -> None:
    """Registers a holder, which gives its memory back on `release`, as long as it lives."""
    with _LOCK:
        _HOLDERS.add(holder)


def release() -> int:
    """Gives back the scratch memory of all launches, which later ones take again; the bytes.

    Waits for the GPU. Memory that CUDA graphs were captured with stays theirs. Call it while no other thread launches
    and nothing is captured.
    """
    with _LOCK:
        yielded = [one for holder in list(_HOLDERS) for one in holder.yielded()]
    for context in {one.context for one in yielded if one.context}:
        with suppress(DriverError), pushed(context):
            call("cuCtxSynchronize")
    for one in yielded:
        one.give_back()
    ROOM.ask_again()
    return sum(one.size_bytes for one in yielded)


def zeroed(size_bytes: int) -> Scratch:
    """New zeros in the current context, also while a CUDA graph is captured; raises NoRoomError, DriverError."""
    ordinal = current_ordinal() or 0
    ROOM.take(ordinal, size_bytes)
    try:
        with allowed_while_capturing():
            scratch = _allocated(size_bytes, ordinal)
            _clear(scratch)
    except MemoryError as error:
        raise ROOM.refuse(ordinal, size_bytes, str(error)) from error
    except DriverError:
        ROOM.give_back(ordinal, size_bytes)
        raise
    return scratch


def _allocated(size_bytes: int, ordinal: int) -> Scratch:
    pool = pool_here(ordinal)
    if pool is not None:
        # The allocator's functions differ between versions of PyTorch; the driver has memory without them.
        with suppress(AttributeError, TypeError, RuntimeError):
            return Scratch(pool.take(size_bytes), size_bytes, ordinal, pool.give_back)
    memory = ctypes.c_uint64()
    try:
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size_bytes))
    except DriverError as error:
        if error.status == _OUT_OF_MEMORY:
            raise MemoryError(str(error)) from error
        raise
    return Scratch(memory.value, size_bytes, ordinal, lambda address: call("cuMemFree_v2", ctypes.c_uint64(address)))


def _clear(scratch: Scratch) -> None:
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    call("cuMemsetD8Async", ctypes.c_uint64(scratch.address), 0, ctypes.c_size_t(scratch.size_bytes), stream)
    call("cuStreamSynchronize", stream)
    call("cuStreamDestroy_v2", stream)
