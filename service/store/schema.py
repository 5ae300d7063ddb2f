"""Brings the database to this version's tables: our revisions, and the job engine's schema beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.store.session import KEEPALIVE, answering, database_url, sqlalchemy_url

VERSION_TABLE = "tilewright_version"
# "tile" in ASCII: only has to differ from other advisory locks in the same database.
MIGRATION_LOCK = 0x74696C65


def upgrade(url: str | None = None, revision: str = "head") -> None:
    """Applies every missing revision and, where absent, the engine's schema, in one transaction.

    Any number of processes may call it at once: they take turns, and the later ones find nothing to do.
    """
    with _exclusively(url) as connection:
        command.upgrade(_config(connection), revision)
        if connection.scalar(text("SELECT to_regclass('procrastinate_jobs')")) is None:
            driver = connection.connection.driver_connection
            assert driver is not None  # noqa: S101 - for the type checker: it was just used
            driver.execute(SchemaManager.get_schema())


def downgrade(url: str | None = None, revision: str = "base") -> None:
    """Takes revisions back; with `base` all our tables go. The engine's tables stay: they are not ours."""
    with _exclusively(url) as connection:
        command.downgrade(_config(connection), revision)


def check(url: str | None = None) -> None:
    """Nothing, where the tables are what the models say; else raises alembic.util.CommandError with the difference."""
    with _exclusively(url) as connection:
        command.check(_config(connection))


def at_head(url: str | None = None) -> bool:
    """Whether every revision of this version has been applied. Takes no lock: it answers while another migrates."""
    with answering(), _engine(url).connect() as connection:
        applied = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_heads()
        engine_there = connection.scalar(text("SELECT to_regclass('procrastinate_jobs')")) is not None
    return engine_there and set(applied) == set(ScriptDirectory.from_config(_config(None)).get_heads())


def _engine(url: str | None) -> Engine:
    return create_engine(sqlalchemy_url(url or database_url()), poolclass=NullPool, connect_args=KEEPALIVE)


@contextmanager
def _exclusively(url: str | None) -> Iterator[Connection]:
    with answering(), _engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield connection


def _config(connection: Connection | None) -> Config:
    config = Config()
    # Alembic reads this as a format string.
    config.set_main_option("script_location", str(resources.files("tilewright.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config
