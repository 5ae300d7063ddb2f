"""Scratch memory of launches on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.memory.room import HOST, ROOM
from tilewright.tuner.runtime.memory.scratch import Scratch, register

_ALIGNMENT = 16  # of a workspace, as kernels are promised

Memory = np.ndarray[tuple[int], np.dtype[np.uint8]]


class HostWorkspace:
    """Zeroed memory for the launches of one library, which never overlap."""

    def __init__(self) -> None:
        self._held: tuple[Memory, Scratch] | None = None
        self._lock = ForkSafeLock()
        register(self)

    def __del__(self) -> None:
        for one in self.yielded():
            one.give_back()

    def memory(self, size_bytes: int) -> Memory:
        """At least so many bytes, zero if they are new; a launch keeps them until it is over. Raises NoRoomError."""
        with self._lock:
            if self._held is not None and self._held[1].size_bytes >= size_bytes:
                return self._held[0]
            held_bytes = self._held[1].size_bytes if self._held else 0
            ROOM.take(HOST, size_bytes - held_bytes)
            memory = np.zeros(size_bytes + _ALIGNMENT, np.uint8)
            start = -memory.ctypes.data % _ALIGNMENT
            aligned = memory[start : start + size_bytes]
            self._held = aligned, Scratch(aligned.ctypes.data, size_bytes, HOST, _nothing)
            return aligned

    def yielded(self) -> Iterable[Scratch]:
        """The memory held here, which is freed when no launch has it any more."""
        with self._lock:
            held, self._held = self._held, None
            return [] if held is None else [held[1]]


def _nothing(_address: int) -> None:
    """Frees nothing, as NumPy does."""
