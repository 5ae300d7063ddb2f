"""Asks the listeners of a channel by NOTIFY and waits for the first answer. Nothing is stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store.session import answering, engine

CHANNEL_OF_ANSWER = "tilewright_answer_{}"
LONGEST_BYTES = 7999
"""The longest payload that NOTIFY carries."""


def ask(channel: str, question: Callable[[str], str], within_s: float) -> str | None:
    """The answer, None where none came `within_s`; raises DatabaseUnavailableError.

    `question` makes the payload from the name of the channel for the answer, which is this question's own. The
    connection is taken from the pool meanwhile.
    """
    answers = CHANNEL_OF_ANSWER.format(uuid.uuid4().hex)
    payload = question(answers)
    with answering(), engine().connect() as pooled:
        connection = pooled.execution_options(isolation_level="AUTOCOMMIT").connection.driver_connection
        assert isinstance(connection, psycopg.Connection)  # noqa: S101 - the only driver
        try:
            return _ask(connection, channel, answers, payload, within_s)
        except psycopg.Error as error:
            pooled.invalidate()
            raise DatabaseUnavailableError(f"The database does not answer: {error}") from error


def _ask(connection: psycopg.Connection[Any], channel: str, answers: str, payload: str, within_s: float) -> str | None:
    deadline = time.monotonic() + within_s
    name = sql.Identifier(answers)
    connection.execute(sql.SQL("LISTEN {}").format(name))
    connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
    answer = None
    while answer is None and (left_s := deadline - time.monotonic()) > 0:
        for notification in connection.notifies(timeout=left_s, stop_after=1):
            if notification.channel == answers:  # not an answer that came too late for an earlier question here
                answer = notification.payload
    connection.execute(sql.SQL("UNLISTEN {}").format(name))
    return answer
