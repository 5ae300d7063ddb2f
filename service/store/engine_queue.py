"""Gives job ids to the job engine inside our own transaction; nothing else of a job goes there."""

from __future__ import annotations

import hashlib
import uuid
from functools import cache
from typing import Any

import procrastinate
from procrastinate.exceptions import ConnectorException
from sqlalchemy import BigInteger, ColumnElement, func, literal_column, text
from sqlalchemy.dialects.postgresql import ARRAY, array
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError

TUNE = "tune"
"""The name of the engine's task, which is all that an API needs to know of the worker's code."""

MAX_QUEUE_BYTES = 40
"""The engine notifies on the channel `procrastinate_queue_v1#<queue>`, and PostgreSQL takes 63 bytes."""


def queue_of_model(slug: str) -> str:
    """The queue that every device of the model serves."""
    return _name("model", slug)


def queue_of_device(device_uuid: str) -> str:
    """The queue that only this device serves."""
    return _name("device", device_uuid)


def _name(kind: str, name: str) -> str:
    queue = f"{kind}:{name}"
    if len(queue.encode()) <= MAX_QUEUE_BYTES:
        return queue
    return f"{kind}:{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def enqueue(session: Session, job_id: uuid.UUID, queue: str, priority: int) -> int:
    """Adds an entry, which becomes visible when the session commits; the entry's id in the engine."""
    connection = session.connection().connection.driver_connection
    try:
        deferrer = _client().configure_task(TUNE, queue=queue, priority=priority, connection=connection)
        return deferrer.defer(job_id=str(job_id))
    except ConnectorException as error:
        raise DatabaseUnavailableError(f"The database does not answer: {error.__cause__ or error}") from error


def new_entry(job_id: ColumnElement[uuid.UUID], queue: ColumnElement[str], priority: ColumnElement[int]) -> Any:
    """An SQL expression that does `enqueue` for the row; its value is the entry's id in the engine."""
    arguments = func.jsonb_build_object(literal_column("'job_id'"), job_id)
    nothing: ColumnElement[None] = literal_column("NULL")
    row = func.row(queue, literal_column(f"'{TUNE}'"), priority, nothing, nothing, arguments, nothing)
    entries = array([row.op("::")(literal_column("procrastinate_job_to_defer_v1"))])
    return func.procrastinate_defer_jobs_v1(entries, type_=ARRAY(BigInteger))[1]


def drop_entry(session: Session, engine_id: int) -> None:
    """Removes an entry that was added in this transaction."""
    session.execute(text("DELETE FROM procrastinate_jobs WHERE id = :id"), {"id": engine_id})


@cache
def _client() -> procrastinate.App:
    # Never opened: it writes through the session's connection and needs none of its own.
    return procrastinate.App(connector=procrastinate.SyncPsycopgConnector())
