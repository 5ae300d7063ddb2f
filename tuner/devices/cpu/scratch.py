"""Private folders for a bench's arrays, which do not outlive their process for long, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from tilewright.tuner.errors import OutOfMemoryError

_PREFIX = "tilewright-bench-"
_GRACE_S = 5.0
"""A folder younger than this may not be locked yet: its process locks it right after making it."""


class PrivateFolder:
    """A folder with that much room, in memory if there is any; removed when closed or collected.

    It is locked while its process lives, so that `remove_abandoned` knows those that a killed process has left.
    """

    def __init__(self, needed_bytes: int) -> None:
        root = _root_with_room(needed_bytes)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _roots() -> tuple[Path, Path]:
    return Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - the folder inside is private


def _root_with_room(needed_bytes: int) -> Path:
    for root in _roots():
        if root.is_dir() and os.access(root, os.W_OK) and shutil.disk_usage(root).free > needed_bytes:
            return root
    raise OutOfMemoryError(f"none of {', '.join(map(str, _roots()))} has space for {needed_bytes / 1e9:.3g} GB")


def remove_abandoned() -> None:
    """Frees the memory and the disk of folders whose process was killed."""
    for path in (path for root in _roots() for path in root.glob(f"{_PREFIX}*")):
        try:
            if time.time() - path.stat().st_mtime < _GRACE_S:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # its process lives
            os.close(lock)
        else:
            _remove(path, lock)
