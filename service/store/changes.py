"""What the database tells (NOTIFY), on a connection of its own; by default of changes (revision 0009)."""

from __future__ import annotations

import select
import socket
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store.session import KEEPALIVE, database_url

CHANNEL = "tilewright_best"
_CONNECTION: dict[str, Any] = dict(KEEPALIVE)


class Changes:
    """Messages in the order in which their transactions were committed, from `with` on; none is missed meanwhile."""

    _connection: psycopg.Connection

    def __init__(self, channel: str = CHANNEL) -> None:
        self._channel = channel

    def __enter__(self) -> Self:
        self._told: list[str] = []
        try:
            self._connection = psycopg.connect(make_conninfo(database_url(), **_CONNECTION), autocommit=True)
        except psycopg.Error as error:
            raise DatabaseUnavailableError(f"The database does not answer: {error}") from error
        self._connection.add_notify_handler(self._hear)
        try:
            self._ask(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except DatabaseUnavailableError:
            self._connection.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def wait(self, at_most_s: float, also: socket.socket | None = None) -> list[str]:
        """What was told since the last call, after a wait for something; all that was committed before it returned.

        The wait ends too when there is something to read from `also`, or its end. Raises DatabaseUnavailableError
        where the database does not answer.
        """
        if not self._told:
            arrival = select.poll()  # select() takes no descriptor beyond 1023
            for heard in (self._connection, also):
                if heard is not None:
                    arrival.register(heard.fileno(), select.POLLIN)
            arrival.poll(at_most_s * 1000)
        self._ask("SELECT 1")  # whatever was sent before its answer has arrived with it
        told, self._told = self._told, []
        return told

    def _ask(self, question: Any) -> None:
        try:
            self._connection.execute(question)
        except psycopg.Error as error:
            raise DatabaseUnavailableError(f"The database does not answer: {error}") from error

    def _hear(self, message: psycopg.Notify) -> None:
        self._told.append(message.payload)
