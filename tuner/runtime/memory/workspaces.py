"""Scratch memory of launches: one for each stream, and one for each stream of each CUDA graph that is captured.

Two launches share one only where the second waits for the first. A replayed graph may overlap with the stream that it
was captured on, so it gets its own, which stays as long as the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.arrays.views import LEGACY_STREAM
from tilewright.tuner.runtime.launches.contexts import allowed_while_capturing
from tilewright.tuner.runtime.memory.scratch import Scratch, register, zeroed

Use = tuple[int, int]
"""A stream's id and 0, or a captured stream's handle and the id of its graph."""


_DEFAULT, _DEFAULT_USE = frozenset({0, LEGACY_STREAM}), (-1, 0)
"""A context's default stream, which ends with it and is never captured. The driver takes microseconds to say its id."""


class Workspaces:
    """Device memory of one size in the current context, zero before its first use."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._by_use: dict[Use, Scratch] = {}
        self._lock = ForkSafeLock()
        register(self)

    def address(self, stream: int) -> int:
        """The address for a launch on that stream now; allocated, and waited for, at the first request.

        Raises NoRoomError.
        """
        use = use_of(stream)
        workspace = self._by_use.get(use)
        if workspace is None:
            with self._lock:
                workspace = self._by_use.get(use) or zeroed(self._size_bytes)
                self._by_use[use] = workspace
        return workspace.address

    def yielded(self) -> Iterable[Scratch]:
        """The streams' workspaces, which are replaced from now on; graphs keep theirs."""
        with self._lock:
            return without_graphs(self._by_use)


def without_graphs(by_use: dict[Use, Scratch]) -> list[Scratch]:
    """The streams' workspaces, taken out; those of graphs stay."""
    return [by_use.pop(use) for use in list(by_use) if not use[1]]


def use_of(stream: int) -> Use:
    """The stream's id, which is never used again; while it is captured, its handle and the graph's id."""
    if stream in _DEFAULT:
        return _DEFAULT_USE
    capture = capture_id(stream)
    if capture:
        return stream, capture
    number = ctypes.c_ulonglong()
    with allowed_while_capturing():  # of another stream
        call("cuStreamGetId", ctypes.c_void_p(stream), ctypes.byref(number))
    return number.value, 0


def capture_id(stream: int) -> int:
    """The id of the graph that the stream is being captured into, 0 for none; the default stream cannot be."""
    if stream in _DEFAULT:
        return 0
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    question = ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    call("cuStreamGetCaptureInfo_v2", *question)
    return number.value if status.value else 0
