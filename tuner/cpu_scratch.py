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
_GRACE_S = 60.0
"""A folder younger than this may not be locked yet."""


class PrivateFolder:
    """A folder with that much room, in memory if there is any; removed when closed or collected.

    It is locked while its process lives. Whoever makes the next one removes folders that nobody holds: a killed
    process leaves none behind for good.
    """

    def __init__(self, needed_bytes: int) -> None:
        root = _root_with_room(needed_bytes)
        _remove_abandoned(root)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _root_with_room(needed_bytes: int) -> Path:
    roots = (Path("/dev/shm"), Path(tempfile.gettempdir()))  # noqa: S108 - the folder inside is private
    for root in roots:
        if root.is_dir() and os.access(root, os.W_OK) and shutil.disk_usage(root).free > needed_bytes:
            return root
    raise OutOfMemoryError(f"none of {', '.join(map(str, roots))} has room for {needed_bytes / 1e9:.3g} GB")


def _remove_abandoned(root: Path) -> None:
    for path in root.glob(f"{_PREFIX}*"):
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
