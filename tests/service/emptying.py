"""Emptying a database that many tests share: all but the kernels, which take longer to store than most tests.

The one row that says when chores were begun stays, too, and the project `default`.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations import registry
from tilewright.service.store.models import Base
from tilewright.service.store.session import sqlalchemy_url

OF_KERNELS = ("kernel_variants", "kernels")
KEPT = (*OF_KERNELS, "chore_rounds", "projects")
TABLES = [table.name for table in reversed(Base.metadata.sorted_tables) if table.name not in KEPT]
OF_THE_QUEUE = [f"procrastinate_{name}" for name in ("periodic_defers", "jobs", "workers")]
DELETED = [*TABLES, *OF_THE_QUEUE, "projects WHERE id > 1"]
QUOTAS = "UPDATE projects SET max_open_jobs = NULL, max_queued_seconds = NULL, max_schedules = NULL"
EMPTY = "; ".join([*(f"DELETE FROM {table}" for table in DELETED), QUOTAS])  # noqa: S608 - our own names
WITHOUT_KERNELS = "; ".join(f"DELETE FROM {table}" for table in OF_KERNELS)  # noqa: S608
KERNELS = text(
    "SELECT (SELECT string_agg(name || declaration, ' ' ORDER BY id) FROM kernels),"
    " (SELECT string_agg(name || source_hash, ' ' ORDER BY id) FROM kernel_variants)"
)


def kernels_in(engine: Engine) -> object:
    """What is stored of the kernels."""
    with engine.begin() as connection:
        return connection.execute(KERNELS).one()


def empty(engine: Engine, kernels: object) -> None:
    """Leaves those kernels alone, as a worker registers them that starts."""
    with engine.begin() as connection:
        connection.exec_driver_sql(EMPTY)
        is_changed = connection.execute(KERNELS).one() != kernels
        if is_changed:
            connection.exec_driver_sql(WITHOUT_KERNELS)
    if is_changed:
        with Session(engine) as session, session.begin():
            registry.register_kernels(session, catalogue())  # whatever folders a test has named


OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
ROUND = text("SELECT begun_at FROM chore_rounds")
BEFORE_IT = text("UPDATE chore_rounds SET begun_at = :begun_at")
FROM_ONE = text(
    "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) FROM pg_sequences"
    " WHERE last_value IS NOT NULL AND sequencename <> ALL (:of_kernels)"
)


class KeptDatabase:
    """A database that becomes again what it was when it was new: no connection, no row of a test, ids from one.

    A test that changes more than rows, as its schema, asks for `database_url` beside `configured`.
    """

    def __init__(self, make: Callable[[], str], kernels: object) -> None:
        self._make, self._kernels, self._url = make, kernels, ""

    def url(self) -> str:
        """Its address; that of another one where the last could not be restored."""
        if not self._url:
            self._url = self._make()
            self._engine = create_engine(sqlalchemy_url(self._url), poolclass=NullPool)
            with self._engine.begin() as connection:
                self._begun_at = connection.scalar(ROUND)
        return self._url

    def restore(self) -> None:
        """Makes it that."""
        self._url, url = "", self._url
        with self._engine.begin() as connection:
            connection.execute(OTHERS)
        empty(self._engine, self._kernels)
        with self._engine.begin() as connection:
            connection.execute(BEFORE_IT, {"begun_at": self._begun_at})
            connection.execute(FROM_ONE, {"of_kernels": [f"{table}_id_seq" for table in OF_KERNELS]})
        self._url = url
