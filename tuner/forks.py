"""Locks that work in a forked process, even if another thread held them at that moment."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet


class ForkSafeLock:
    """A reentrant lock for `with` that is always free in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _ALL.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Makes the lock free in a forked child, whoever held it."""
        self._lock = threading.RLock()


_ALL: WeakSet[ForkSafeLock] = WeakSet()


def _renew_all() -> None:
    for lock in list(_ALL):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
