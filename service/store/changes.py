"""Notifications of changes (NOTIFY, revision 0009) on a connection of their own."""

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
    """Messages in the order of their transactions' commits; inside `with` none is missed."""

    _connection: psycopg.Connection

    def __enter__(self) -> Self:
        self._received: list[str] = []
        try:
            self._connection = psycopg.connect(make_conninfo(database_url(), **_CONNECTION), autocommit=True)
        except psycopg.Error as error:
            raise DatabaseUnavailableError(f"The database does not answer: {error}") from error
        self._connection.add_notify_handler(self._receive)
        try:
            self._ask(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        except DatabaseUnavailableError:
            self._connection.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def wait(self, at_most_s: float, also: socket.socket | None = None) -> list[str]:
        """The messages since the last call, at least one, for which it waits; it has all that were committed before.

        The wait also ends when `also` has something to read or was closed. Raises DatabaseUnavailableError where the
        database does not answer.
        """
        if not self._received:
            arrival = select.poll()  # select() takes no descriptor beyond 1023
            for source in (self._connection, also):
                if source is not None:
                    arrival.register(source.fileno(), select.POLLIN)
            arrival.poll(at_most_s * 1000)
        self._ask("SELECT 1")  # whatever was sent before its answer has arrived with it
        received, self._received = self._received, []
        return received

    def _ask(self, question: Any) -> None:
        try:
            self._connection.execute(question)
        except psycopg.Error as error:
            raise DatabaseUnavailableError(f"The database does not answer: {error}") from error

    def _receive(self, message: psycopg.Notify) -> None:
        self._received.append(message.payload)
