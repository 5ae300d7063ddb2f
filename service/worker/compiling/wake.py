"""A wake-up call for a thread that waits for notifications of the database."""

from __future__ import annotations

import contextlib
import socket


class Wake:
    """Makes `ear` readable by `call`, from any thread, until `clear`."""

    def __init__(self) -> None:
        self.ear, self._mouth = socket.socketpair()
        for end in (self.ear, self._mouth):
            end.setblocking(False)  # noqa: FBT003 - the standard library's own

    def call(self) -> None:
        """Wakes whoever waits for the ear; never waits itself."""
        with contextlib.suppress(OSError):  # full: called often enough; closed: nobody waits
            self._mouth.send(b"\0")

    def clear(self) -> None:
        """Forgets the calls so far."""
        with contextlib.suppress(BlockingIOError):
            while self.ear.recv(4096):
                pass

    def close(self) -> None:
        """Frees both ends."""
        self.ear.close()
        self._mouth.close()
