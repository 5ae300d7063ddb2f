"""Migrates the database to this version's tables: our revisions and, beside them, the job engine's schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING

from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import NullPool

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.store.session import KEEPALIVE, answering, database_url, sqlalchemy_url

# Alembic takes an eighth of a second to import, and most processes find their tables up to date.
if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "tilewright_version"
# "tile" in ASCII: only has to differ from other advisory locks in the same database.
MIGRATION_LOCK = 0x74696C65
NEWER_TABLES = (
    "The database's tables are those of a newer Tilewright than this one. Install that version here, or revert the "
    "tables with it."
)


def upgrade(url: str | None = None, revision: str = "head") -> None:
    """Applies all missing revisions and, if absent, the engine's schema, in one transaction.

    Any number of processes may call it at once: they take turns, and the later ones find nothing to do.
    """
    if revision == "head" and at_head(url):
        return
    from alembic import command  # noqa: PLC0415
    from alembic.script.revision import ResolutionError  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    with _exclusively(url) as connection:
        try:
            command.upgrade(_config(connection), revision)
        except CommandError as error:
            if isinstance(error.__cause__, ResolutionError):
                raise DatabaseUnavailableError(NEWER_TABLES) from error
            raise
        if connection.scalar(text("SELECT to_regclass('procrastinate_jobs')")) is None:
            driver = connection.connection.driver_connection
            assert driver is not None  # noqa: S101 - for the type checker: it was just used
            driver.execute(SchemaManager.get_schema())


def last_step(url: str | None = None) -> str | None:
    """The step that `downgrade_last` reverts, in words; None where the tables are not at this version."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    if not at_head(url):
        return None
    revision = ScriptDirectory.from_config(_config(None)).get_revision(head())
    return f"{revision.revision}: {revision.doc}"


def downgrade_last(url: str | None = None) -> None:
    """Reverts the last step of this version's tables, as the version before it has them. Earlier steps stay."""
    from alembic import command  # noqa: PLC0415

    with _exclusively(url) as connection:
        command.downgrade(_config(connection), "-1")


def check(url: str | None = None) -> None:
    """Raises alembic.util.CommandError with the difference where the tables are not what the models declare."""
    from alembic import command  # noqa: PLC0415

    with _exclusively(url) as connection:
        command.check(_config(connection))


def at_head(url: str | None = None) -> bool:
    """Whether every revision of this version has been applied. Takes no lock: it answers while another migrates."""
    with answering(), _engine(url).connect() as connection:
        both = text(f"SELECT to_regclass('{VERSION_TABLE}'), to_regclass('procrastinate_jobs')")
        if None in connection.execute(both).one():
            return False
        applied = connection.scalars(text(f"SELECT version_num FROM {VERSION_TABLE}")).all()  # noqa: S608 - our constant
    return list(applied) == [head()]


def head() -> str:
    """The newest revision, by the names of the files: they begin with the revision's number."""
    names = (entry.name for entry in resources.files("tilewright.migrations").joinpath("versions").iterdir())
    return max(name for name in names if name[:1].isdigit()).partition("_")[0]


def _engine(url: str | None) -> Engine:
    return create_engine(sqlalchemy_url(url or database_url()), poolclass=NullPool, connect_args=KEEPALIVE)


@contextmanager
def _exclusively(url: str | None) -> Iterator[Connection]:
    with answering(), _engine(url).begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        yield connection


def _config(connection: Connection | None) -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config(stdout=sys.stdout)  # by default it is that of the moment when Alembic was imported
    # Alembic reads this as a format string.
    config.set_main_option("script_location", str(resources.files("tilewright.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config
