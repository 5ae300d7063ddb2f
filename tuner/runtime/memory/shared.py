"""The workspace that all sizes and all configurations share: one a stream, as large as the largest needs.

Kernels that have the size of an axis from the launch count in the first SHARED_COUNTER_BYTES alone, and leave them at
zero (`Variant.takes_size`), so that whichever comes next on the stream may have what is behind them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache

from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.launches.contexts import current_ordinal
from tilewright.tuner.runtime.memory.room import ROOM, NoRoomError
from tilewright.tuner.runtime.memory.scratch import Scratch, register, zeroed
from tilewright.tuner.runtime.memory.workspaces import Use, use_of, without_graphs


class SharedWorkspaces:
    """Workspaces of one context, which is current whenever this is used."""

    def __init__(self) -> None:
        self._by_use: dict[Use, Scratch] = {}
        self._largest = 0
        self._lock = ForkSafeLock()
        register(self)

    def reserve(self, size_bytes: int, stream: int = 0) -> None:
        """Makes the stream's workspace that large now, and those of other streams when they are asked for.

        Where there is no room, launches say so, or do with less.
        """
        with self._lock:
            self._largest = max(self._largest, size_bytes)
        if size_bytes:
            try:
                self.address(stream, size_bytes)
            except NoRoomError:
                self._largest = 0

    def address(self, stream: int, size_bytes: int) -> int:
        """The address of the stream's workspace of at least that size, made first where there is none.

        Raises NoRoomError.
        """
        use = use_of(stream)
        held = self._by_use.get(use)
        return (
            held.address if held is not None and held.size_bytes >= size_bytes else self._grown(use, stream, size_bytes)
        )

    def yielded(self) -> Iterable[Scratch]:
        """The streams' workspaces, which are replaced from now on; graphs keep theirs."""
        with self._lock:
            return without_graphs(self._by_use)

    def _grown(self, use: Use, stream: int, size_bytes: int) -> int:
        with self._lock:
            held = self._by_use.get(use)
            if held is not None and held.size_bytes >= size_bytes:
                return held.address
            if held is not None and not use[1]:  # a graph that is being captured holds the one before
                ROOM.check(current_ordinal() or 0, size_bytes - held.size_bytes)
                call("cuStreamSynchronize", ctypes.c_void_p(stream))
                self._by_use.pop(use).give_back()
            fresh = self._by_use[use] = self._largest_possible(size_bytes)
            return fresh.address

    def _largest_possible(self, size_bytes: int) -> Scratch:
        """A workspace as large as any known launch needs, if there is room for that."""
        if self._largest > size_bytes:
            try:
                return zeroed(self._largest)
            except NoRoomError:
                self._largest = 0
        return zeroed(size_bytes)


@cache
def shared_workspaces(_context_id: int) -> SharedWorkspaces:
    """The workspaces of the context with that id."""
    return SharedWorkspaces()
