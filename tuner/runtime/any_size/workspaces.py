"""The workspace that all sizes and all configurations share: one a stream, as large as the largest needs.

Kernels that have the size of an axis from the launch count in the first SHARED_COUNTER_BYTES alone, and leave them at
zero (`Variant.takes_size`), so that whichever comes next on the stream may have what is behind them.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.workspaces import use_of, zeroed


class SharedWorkspaces:
    """Workspaces of one context, which is current whenever this is used."""

    def __init__(self) -> None:
        self._by_use: dict[tuple[int, int], tuple[int, int]] = {}
        self._largest = 0
        self._lock = ForkSafeLock()

    def reserve(self, size_bytes: int, stream: int = 0) -> None:
        """Makes the stream's workspace that large now, and those of other streams when they are asked for."""
        with self._lock:
            self._largest = max(self._largest, size_bytes)
        if size_bytes:
            self.address(stream, size_bytes)

    def address(self, stream: int, size_bytes: int) -> int:
        """The one for a launch on that stream now, at least that large; made, and waited for, where there is none."""
        use = use_of(stream)
        address, size = self._by_use.get(use, (0, 0))
        return address if size >= size_bytes else self._grown(use, stream, size_bytes)

    def _grown(self, use: tuple[int, int], stream: int, size_bytes: int) -> int:
        with self._lock:
            address, size = self._by_use.get(use, (0, 0))
            if size >= size_bytes:
                return address
            wanted = max(size_bytes, self._largest)
            fresh = zeroed(wanted)
            self._by_use[use] = fresh, wanted
            if address and not use[1]:  # a graph that is being captured holds the one before
                call("cuStreamSynchronize", ctypes.c_void_p(stream))
                call("cuMemFree_v2", ctypes.c_uint64(address))
            return fresh


@cache
def shared_workspaces(_context_id: int) -> SharedWorkspaces:
    """The workspaces of the context with that id."""
    return SharedWorkspaces()
