"""The scratch memory that launches may keep on each device: a setting's limit, and refusals by the device."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import cache

from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.errors import LaunchError

SETTING = "TILEWRIGHT_WORKSPACE_LIMIT_MB"
MB = 10**6

REFUSED_S = 5.0
"""A device without room is not asked again for so long: PyTorch's allocator gives up all it has cached each time."""

HOST = -1
"""The CPU, where GPUs have their number."""


class NoRoomError(LaunchError):
    """There is no room for the scratch memory of a launch."""


class Room:
    """The bytes that launches keep on each device of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: Counter[int] = Counter()
        self._refused: dict[int, tuple[int, float]] = {}
        self._lock = ForkSafeLock()

    def check(self, ordinal: int, size_bytes: int) -> None:
        """Raises NoRoomError if so many more bytes exceed the limit, or were refused a moment ago."""
        if not size_bytes:
            return
        limit, taken = limit_bytes(), self._taken[ordinal]
        if limit is not None and taken + size_bytes > limit:
            in_use = f"{taken / MB:.4g} MB of {SETTING}={limit / MB:.4g} are in use"
            raise NoRoomError(f"{_needed(size_bytes)}, and {in_use}: raise the limit, or call release()")
        least, until = self._refused.get(ordinal, (0, 0.0))
        if least and size_bytes >= least and self._clock() < until:
            raise NoRoomError(f"{_needed(size_bytes)}, and the device has had no room for {least / MB:.4g} MB")

    def take(self, ordinal: int, size_bytes: int) -> None:
        """Counts so many more bytes; raises as `check`."""
        with self._lock:
            self.check(ordinal, size_bytes)
            self._taken[ordinal] += size_bytes

    def give_back(self, ordinal: int, size_bytes: int) -> None:
        """Counts so many fewer; the device may have room again."""
        with self._lock:
            self._taken[ordinal] -= size_bytes
            self._refused.pop(ordinal, None)

    def refuse(self, ordinal: int, size_bytes: int, reason: str) -> NoRoomError:
        """The error for bytes that were counted and that the device has no room for."""
        self.give_back(ordinal, size_bytes)
        self._refused[ordinal] = size_bytes, self._clock() + REFUSED_S
        return NoRoomError(f"{_needed(size_bytes)}, and the device has no room: {reason}")

    def ask_again(self) -> None:
        """Forgets what devices refused."""
        self._refused.clear()

    def taken_bytes(self, ordinal: int) -> int:
        """The bytes that launches keep on that GPU."""
        return self._taken[ordinal]

    def by_device(self) -> dict[int, int]:
        """The bytes that launches keep on each GPU, by its number."""
        return {ordinal: taken for ordinal, taken in dict(self._taken).items() if ordinal != HOST}


ROOM = Room()
"""This process's."""


def limit_bytes() -> int | None:
    """The most that launches keep on a device, as the setting says; None where it says nothing. Raises LaunchError."""
    return _bytes(os.environ.get(SETTING, ""))


@cache
def _bytes(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = -1.0
    if not 0 <= megabytes < float("inf"):
        raise LaunchError(f"{SETTING}: {text!r} is not a number of megabytes. Set 256, for instance, or 0 for none")
    return int(megabytes * MB)


def _needed(size_bytes: int) -> str:
    return f"a workspace of {size_bytes / MB:.4g} MB is needed"
