"""Scratch memory of launches: one for each stream, and one for each stream of each CUDA graph that is captured.

Two launches share one only where the second waits for the first. A replayed graph may overlap with the stream that it
was captured on, so it gets its own, which lives as long as the launcher's function.
"""

from __future__ import annotations

import ctypes

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.runtime.contexts import allowed_while_capturing
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.views import LEGACY_STREAM

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class Workspaces:
    """Device memory of one size in the current context, zero before its first use."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._by_use: dict[tuple[int, int], int] = {}
        self._lock = ForkSafeLock()

    def address(self, stream: int) -> int:
        """The one for a launch on that stream now; allocated, and waited for, when it is first asked for."""
        use = use_of(stream)
        workspace = self._by_use.get(use)
        if workspace is None:
            with self._lock:
                workspace = self._by_use.get(use) or zeroed(self._size_bytes)
                self._by_use[use] = workspace
        return workspace


def zeroed(size_bytes: int) -> int:
    """The address of new zeros in the current context, which nothing frees; also while a CUDA graph is captured."""
    memory, stream = ctypes.c_uint64(), ctypes.c_void_p()
    with allowed_while_capturing():
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size_bytes))
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        call("cuMemsetD8Async", memory, 0, ctypes.c_size_t(size_bytes), stream)
        call("cuStreamSynchronize", stream)
        call("cuStreamDestroy_v2", stream)
    return memory.value


def use_of(stream: int) -> tuple[int, int]:
    """The stream by its id, which is never used again; while it is captured, its handle and the graph's id."""
    capture = capture_id(stream)
    if capture:
        return stream, capture
    number = ctypes.c_ulonglong()
    with allowed_while_capturing():  # of another stream
        call("cuStreamGetId", ctypes.c_void_p(stream), ctypes.byref(number))
    return number.value, 0


def capture_id(stream: int) -> int:
    """The id of the graph that the stream is being captured into, 0 for none; the default stream cannot be."""
    if stream in {0, LEGACY_STREAM}:
        return 0
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    question = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    call("cuStreamGetCaptureInfo_v2", *question)
    return number.value if status.value else 0
