"""PyTorch's caching allocator as a source of scratch memory: counted there, in a pool of its own."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.contexts import current_handle, primary

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class PyTorchPool:
    """Memory of PyTorch's on one GPU, whose primary context is current whenever this is used.

    It is PyTorch's for a stream of our own, which is never captured: else it would lie in the pool of a graph.
    """

    def __init__(self, torch: Any, ordinal: int) -> None:
        self._torch, self._ordinal = torch, ordinal
        self._pool: Any = None
        self._held: set[int] = set()
        self._lock = ForkSafeLock()
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        self._stream = stream.value or 0

    def take(self, size_bytes: int) -> int:
        """The address of so many bytes; raises MemoryError where PyTorch has no room."""
        cuda = self._torch.cuda
        try:
            with self._lock, cuda.device(self._ordinal):
                has_pools = hasattr(cuda, "MemPool") and cuda.get_allocator_backend() == "native"
                if not has_pools:
                    return self._allocated(size_bytes)
                self._pool = self._pool or cuda.MemPool()
                with cuda.use_mem_pool(self._pool, self._ordinal):
                    return self._allocated(size_bytes)
        except cuda.OutOfMemoryError as error:
            raise MemoryError(str(error).partition(".")[0]) from error

    def give_back(self, address: int) -> None:
        """Gives the bytes back to PyTorch, and with the last of them the pool to the GPU; nothing may run on them."""
        with self._lock:
            self._torch.cuda.caching_allocator_delete(address)
            self._held.discard(address)
            if not self._held:
                self._pool = None

    def _allocated(self, size_bytes: int) -> int:
        address = int(self._torch.cuda.caching_allocator_alloc(size_bytes, self._ordinal, self._stream))
        self._held.add(address)
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
