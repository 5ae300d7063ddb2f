"""A thread that keeps the best configurations in memory up to date by listening for the database's notifications."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.best_cache.asked_shelves import Name, asked_lately, note_asked
from tilewright.service.operations.best_cache.memory import BELIEVED_S, BestMemory
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.changes import Changes

logger = logging.getLogger(__name__)

LOOK_EVERY_S = BELIEVED_S / 5
"""How often the database is asked for missed changes; notifications are followed at once."""

AGAIN_S = 1.0
"""How soon to try again where the database is unavailable or has another version."""

NOTE_EVERY_S = 3600.0
"""How often the use of a shelf is recorded."""

STOP_S = 5.0
"""How long a stopping process waits for a shelf that is being filled."""


class BestWatch:
    """Keeps the memory equal to the database, or empty, from `start` to `stop`."""

    def __init__(self, memory: BestMemory) -> None:
        self.memory = memory
        self._stopping = threading.Event()
        self._wake: socket.socket
        self._woken: socket.socket
        self._thread: threading.Thread | None = None
        self._noted: dict[Name, float] = {}

    def start(self) -> None:
        """Starts the thread."""
        self._stopping.clear()
        self.memory.prepare()
        self._wake, self._woken = socket.socketpair()  # a wait for changes ends when the first is closed
        self._thread = threading.Thread(target=self._loop, name="best", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; nothing is answered from memory any more."""
        self._stopping.set()
        if self._thread is not None:
            self._wake.close()
            self._thread.join(STOP_S)
        self.memory.forget()

    def _loop(self) -> None:
        with self._woken:
            while not self._stopping.is_set():
                self._listen()
                self.memory.forget()
                self._stopping.wait(AGAIN_S)

    def _listen(self) -> None:
        try:
            with Changes() as changes:
                self._follow(changes)
        except DatabaseUnavailableError as error:
            logger.warning("Answers come from the database, not from memory. %s", error)
        except Exception:
            # Tables of another version, rows that nobody here can read, whatever it is: it must not end the thread.
            logger.exception("Answers come from the database, not from memory.")

    def _follow(self, changes: Changes) -> None:
        self.memory.forget()  # only now is every later change heard of
        with transaction() as session:
            self.memory.learn_models(session)
            self.memory.expect(asked_lately(session))
        while not self._stopping.is_set():
            self.memory.renew()
            name = self.memory.wanted()
            self._look(changes, LOOK_EVERY_S if name is None else 0)
            if name is not None:
                self._fill(changes, name)

    def _look(self, changes: Changes, at_most_s: float) -> list[str]:
        notifications = changes.wait(at_most_s, self._woken)
        if notifications:
            with transaction() as session:
                self.memory.follow(session, notifications)
        self.memory.confirm()
        self._note_asked()
        return notifications

    def _note_asked(self) -> None:
        """Records the shelves that were asked about, each at most once in NOTE_EVERY_S."""
        now = time.monotonic()
        asked, self.memory.asked = self.memory.asked, set()
        due = {name for name in asked if now - self._noted.get(name, -math.inf) > NOTE_EVERY_S}
        if due:
            self._noted.update(dict.fromkeys(due, now))
            with transaction() as session:
                note_asked(session, due)

    def _fill(self, changes: Changes, name: tuple[str, str]) -> None:
        """Fills a shelf from one snapshot, then applies the changes that were notified meanwhile."""
        notifications: list[str] = []

        def meanwhile() -> None:
            notifications.extend(self._look(changes, 0))
            if self._stopping.is_set():
                raise _StoppedError

        try:
            with transaction() as session:
                shelf = self.memory.filled(session, name, meanwhile)
        except _StoppedError:
            return
        if shelf is not None:
            self.memory.put(name, shelf)
            if notifications:
                with transaction() as session:
                    self.memory.follow(session, notifications)


class _StoppedError(Exception):
    """The process stops while a shelf is being filled."""
