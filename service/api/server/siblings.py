"""Memory that the API processes of one address share: mapped files in a folder that `serve` creates."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

FOLDER = "TILEWRIGHT_SIBLINGS"
"""The environment variable with the folder; not set for a single process."""

WAYS, SETS = 8, 512
"""A name may be in eight of the 4096 places; a new name replaces the least recent of its eight."""

_SET = struct.Struct("<" + "Qdd" * WAYS)
_SLOT = struct.Struct("<Qdd")
_NUMBER = struct.Struct("<Q")


def folder() -> Path | None:
    """The shared folder; None for a single process."""
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


def listen_on(host: str, port: int) -> bool:
    """Whether one of the processes already accepts connections there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return probe.connect_ex((host.strip("[]"), port)) == 0


class Memory:
    """Bytes that all processes see, zero at first; private to a single process."""

    def __init__(self, name: str, size: int) -> None:
        where = folder()
        self._descriptor = -1 if where is None else os.open(where / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if where is not None:
            os.ftruncate(self._descriptor, size)  # of a file that is so long already it changes nothing
        self.bytes = mmap.mmap(self._descriptor, size)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the memory against other processes; the lock of a killed process is released."""
        if self._descriptor < 0:
            yield
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


class Pairs:
    """Two numbers for each of the names used last."""

    def __init__(self, name: str) -> None:
        self._memory = Memory(name, SETS * _SET.size)

    def change(self, name: str, new: tuple[float, float], step: Callable[[float, float], tuple[float, float]]) -> None:
        """Replaces the name's numbers (at first `new`) by `step` of them; the second number is a time."""
        key = _key(name)
        start = key % SETS * _SET.size
        with self._memory.locked():
            held = _SET.unpack_from(self._memory.bytes, start)
            keys = held[::3]
            if key in keys:
                place = keys.index(key)
                new = held[3 * place + 1], held[3 * place + 2]
            else:
                whens = [when if used else float("-inf") for used, when in zip(keys, held[2::3], strict=True)]
                place = whens.index(min(whens))
            _SLOT.pack_into(self._memory.bytes, start + place * _SLOT.size, key, *step(*new))


class Bell:
    """A signal that one process sends and each process receives once."""

    def __init__(self, name: str) -> None:
        self._memory = Memory(name, _NUMBER.size)
        self._heard = self._last()

    def ring(self) -> None:
        """Sends the signal, also to this process. Numbers are random, so that two signals at once do not cancel out."""
        _NUMBER.pack_into(self._memory.bytes, 0, secrets.randbits(64))

    def was_rung(self) -> bool:
        """Whether the signal was sent since the last call."""
        last, heard = self._last(), self._heard
        self._heard = last
        return last != heard

    def _last(self) -> int:
        number: int = _NUMBER.unpack_from(self._memory.bytes)[0]
        return number


@lru_cache(maxsize=4096)
def _key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") or 1
