"""File locks. The kernel keeps them, so that none outlives the processes that hold it, however these end."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock `path`, after waiting as long as another process holds it."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # not left to `close`: a forked child may hold a copy of the descriptor
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock `path`; None when another process holds it.

    Copies of the descriptor in other processes hold the same lock: it is free again when the last one is closed.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def share(path: Path) -> int:
    """A descriptor that shares the lock `path`; waits while a process holds it exclusively."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
