"""Random arrays that were drawn, for the next problem of a family."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

from numpy.typing import NDArray

HostArray = NDArray[Any]


class KeptDraws:
    """The latest arrays of families, read-only: a weight is the same at every number of rows, and drawing it slow."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._arrays: dict[Hashable, HostArray] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, make: Callable[[], HostArray]) -> HostArray:
        """The array of that key, made where it is not kept."""
        with self._lock:
            array = self._arrays.pop(key, None)
            if array is not None:
                self._arrays[key] = array  # the latest
                return array
        array = make()
        array.flags.writeable = False
        with self._lock:
            if key not in self._arrays and array.nbytes <= self._most_bytes:
                self._arrays[key] = array
                self._bytes += array.nbytes
            while self._bytes > self._most_bytes:
                self._bytes -= self._arrays.pop(next(iter(self._arrays))).nbytes
        return array


MEMORY_SHARE, MOST_KEPT_BYTES = 16, 6 << 30
"""Draws take at most this part of the host's memory: all kinds of a weight of 14336 x 4096 in float32 are 4.2 GB."""

KEPT = KeptDraws(min(MOST_KEPT_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MEMORY_SHARE))
