"""Access to the database: its address, a cached engine, and a transaction as a context."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.settings import settings
from tilewright.service.store.embedded import EmbeddedPostgres

# Applied by the server: the locks of a host that has vanished are free after half a minute, those of a process that
# hangs in the middle of a transaction after a minute.
_SERVER_SIDE = {
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "idle_in_transaction_session_timeout": 60_000,
    # A statement of a process that is gone would go on to its end, minutes on a large database.
    "client_connection_check_interval": 10_000,
}

# A worker that loses its network must notice within half a minute, not after the kernel's two hours.
KEEPALIVE: dict[str, int | str] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "connect_timeout": 5,
    "options": " ".join(f"-c {name}={value}" for name, value in _SERVER_SIDE.items()),
}


class _Database:
    """A database in use: its address and its engine, both found out when they are needed first."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.engine: Engine | None = None
        self.making = threading.Lock()  # simultaneous threads must not make an engine each, with pools never closed

    @cached_property
    def address(self) -> str:
        chosen = self.url or settings().database_url
        if chosen is None:
            return EmbeddedPostgres(settings().data_dir / "postgres").enter()
        return chosen.replace("postgresql+psycopg://", "postgresql://", 1).replace("postgres://", "postgresql://", 1)

    def close(self) -> None:
        with self.making:
            if self.engine is not None:
                event.listen(self.engine.pool, "checkin", lambda _, record: record.invalidate())
                self.engine.dispose()


class _Chosen:
    """The database chosen by `configure`. A thread still opening the one before changes no other."""

    database = _Database(None)


def configure(url: str | None) -> None:
    """Makes this process use the database at `url`; None goes back to the settings. Open connections are dropped.

    A connection that a thread still works with is closed as soon as that thread gives it back.
    """
    before, _Chosen.database = _Chosen.database, _Database(url)
    before.close()


def database_url() -> str:
    """`postgresql://…` for libpq: as configured, as set, or of the embedded server, which is started if needed."""
    return _Chosen.database.address


def sqlalchemy_url(url: str) -> str:
    """The database's address with SQLAlchemy's name of the driver."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def engine() -> Engine:
    """The engine of this process, one for all its threads."""
    database = _Chosen.database
    with database.making:
        if database.engine is None:
            database.engine = _new_engine(database.address)
        return database.engine


def made_engine() -> Engine | None:
    """The engine of this process; None where it was not needed yet."""
    return _Chosen.database.engine


def _new_engine(address: str) -> Engine:
    return create_engine(
        sqlalchemy_url(address),
        pool_pre_ping=True,
        hide_parameters=True,  # an error's text goes to the log, and a parameter may be a secret
        # Threads that the API answers from: a request must not wait for a connection while the database is idle.
        pool_size=10,
        max_overflow=30,
        connect_args=KEEPALIVE | {"options": f"{KEEPALIVE['options']} -c timezone=UTC"},
    )


def revive() -> None:
    """Starts the embedded server again where this process uses it and it has ended; leaves other databases alone."""
    if _Chosen.database.url is None and settings().database_url is None:
        EmbeddedPostgres(settings().data_dir / "postgres").ensure()


@contextmanager
def answering() -> Iterator[None]:
    """Turns the driver's errors of a database that does not answer into DatabaseUnavailableError."""
    try:
        yield
    except DBAPIError as error:
        # Or the server ended the connection, as that of a transaction that stood still.
        if not (isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated):
            raise
        raise DatabaseUnavailableError(f"The database does not answer: {error.orig}") from error
    except PoolTimeoutError as error:
        raise DatabaseUnavailableError("All connections to the database are in use; try again.") from error


_is_open: ContextVar[bool] = ContextVar("tilewright_transaction_is_open", default=False)


class InTransactionError(RuntimeError):
    """Something that takes long was begun inside a transaction."""


def refuse_in_transaction(what: str) -> None:
    """Raises InTransactionError where this thread has a transaction open: `what` would hold its locks and its rows."""
    if _is_open.get():
        raise InTransactionError(f"{what} inside a transaction, which must end before")


@contextmanager
def session_scope() -> Iterator[Session]:
    """A session in one transaction: committed at the end, rolled back on an error; DatabaseUnavailableError if away."""
    with answering(), Session(engine(), expire_on_commit=False) as session, session.begin():
        outer = _is_open.get()
        _is_open.set(True)
        try:
            yield session
        finally:
            _is_open.set(outer)
