"""Processes that predict, kept from one test to the next: each takes two seconds of CPU time to load."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tilewright.tuner.child import Child

READ = ("TILEWRIGHT_KERNEL_FOLDERS", "TILEWRIGHT_SHIPPED_RECORDS")
"""Settings on which an answer of such a process depends."""

_KEPT: dict[object, Child] = {}


class KeptChild:
    """A pool's child of the database that tests share. One that is at work when it is ended does end."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...], **_named: bool) -> None:
        own = tuple(os.environ.get(name) for name in READ)
        self._key, self._is_at_work, self._is_ended = (function, arguments, own), False, False
        kept = _KEPT.pop(self._key, None)
        is_alive = kept is not None and kept.process.poll() is None
        self._child = kept if is_alive else Child(function, arguments)
        self.connection = self.process = self

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, asked: object) -> None:
        if self._is_ended:
            raise BrokenPipeError
        self._is_at_work = True
        self._child.connection.send(asked)

    def poll(self, timeout_s: float) -> bool:
        return self._child.connection.poll(timeout_s)

    def recv(self) -> Any:
        reply = self._child.connection.recv()
        self._is_at_work = False
        return reply

    def kill(self) -> None:
        if self._is_at_work or (self._key in _KEPT and not self._is_ended):
            self._child.kill()
        elif not self._is_ended:
            _KEPT[self._key] = self._child
        self._is_ended = True


def end() -> None:
    """Ends those that wait for the next test."""
    for child in _KEPT.values():
        child.kill()
    _KEPT.clear()
