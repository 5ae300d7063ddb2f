"""PyTorch's caching allocator as a source of scratch memory: counted there, in pools of its own."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.launches.contexts import current_handle, primary

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_SMALL_BYTES = 1 << 20
"""PyTorch cuts allocations up to this size out of segments of 2 MiB."""


class PyTorchPool:
    """Memory of PyTorch's on one GPU, whose primary context is current whenever this is used.

    It is PyTorch's for a stream of our own, which is never captured: else it would lie in the pool of a graph.
    """

    def __init__(self, torch: Any, ordinal: int) -> None:
        self._torch, self._ordinal = torch, ordinal
        self._small: Any = None
        self._pools: dict[int, Any] = {}
        self._lock = ForkSafeLock()
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self._stream = stream.value or 0

    def take(self, size_bytes: int) -> int:
        """The address of so many bytes; raises MemoryError where PyTorch has no room."""
        cuda = self._torch.cuda
        try:
            with self._lock, cuda.device(self._ordinal):
                if not hasattr(cuda, "MemPool") or cuda.get_allocator_backend() != "native":
                    return self._allocated(size_bytes, None)
                pool = self._pool_for(size_bytes)
                with cuda.use_mem_pool(pool, self._ordinal):
                    return self._allocated(size_bytes, pool)
        except cuda.OutOfMemoryError as error:
            raise MemoryError(str(error).partition(".")[0]) from error

    def give_back(self, address: int) -> None:
        """Gives the bytes back to PyTorch; nothing may run on them."""
        with self._lock:
            self._torch.cuda.caching_allocator_delete(address)
            pool = self._pools.pop(address)
            if pool is self._small and pool not in self._pools.values():
                self._small = None

    def _pool_for(self, size_bytes: int) -> Any:
        """A new pool for a large allocation: PyTorch frees a pool's memory only when nothing is left in it."""
        if size_bytes > _SMALL_BYTES:
            return self._torch.cuda.MemPool()
        self._small = self._small or self._torch.cuda.MemPool()
        return self._small

    def _allocated(self, size_bytes: int, pool: Any) -> int:
        address = int(self._torch.cuda.caching_allocator_alloc(size_bytes, self._ordinal, self._stream))
        self._pools[address] = pool
        return address


def pool_here(ordinal: int) -> PyTorchPool | None:
    """PyTorch's memory in the current context of that GPU; None where PyTorch does not work in it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized() or current_handle() != primary(ordinal):
        return None
    return _pool(ordinal)


@cache
def _pool(ordinal: int) -> PyTorchPool:
    return PyTorchPool(sys.modules["torch"], ordinal)
