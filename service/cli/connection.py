"""The source of a command's answers: the API at TILEWRIGHT_URL if that is set, otherwise this machine's database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import note
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.caller import COMMAND_LINE, acting_as
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tilewright.service.cli.local_connection import LocalConnection
    from tilewright.service.client import Client
    from tilewright.service.store.embedded import EmbeddedPostgres

    Connection = Client | LocalConnection
    """The service as commands see it: the API, or the database by the same calls."""


def embedded_server() -> EmbeddedPostgres | None:
    """The embedded PostgreSQL of the settings; None if they name another database."""
    from tilewright.service.store.embedded import EmbeddedPostgres

    return None if settings().database_url else EmbeddedPostgres(settings().data_dir / "postgres")


@contextmanager
def connect() -> Iterator[Connection]:
    """The connection that the settings name, ready to answer."""
    url = settings().url
    if url:
        from tilewright.service.client import Client

        with Client(url, key=settings().key) as client:
            yield client
        return
    from tilewright.service.cli.local_connection import LocalConnection

    prepare_database()
    with acting_as(COMMAND_LINE, "tilewright " + " ".join(sys.argv[1:3])):  # the command's own words, no values
        yield LocalConnection()


@contextmanager
def database_session(what: str, calls: str, command: str) -> Iterator[Session]:
    """A session for a command that works in the database alone; raises CommandError where TILEWRIGHT_URL names an API.

    `what` it manages and the `calls` of the API that do the same, for the sentence that says so.
    """
    if settings().url:
        raise CommandError(
            f"{what} are managed in the database: unset TILEWRIGHT_URL there, or use {calls} with an admin key",
            ExitCode.USAGE,
        )
    from tilewright.service.operations.transaction import transaction

    prepare_database()
    with acting_as(COMMAND_LINE, command), transaction() as session:
        yield session


def prepare_database() -> None:
    """Starts the embedded database if it is stopped, and brings its tables up to date.

    A shared database is not migrated in passing: its other users have to agree on when that happens.
    """
    from tilewright.service.store import schema

    server = embedded_server()
    if server is None:
        if not schema.at_head():
            raise DatabaseUnavailableError(
                "The database's tables are not those of this version. Run: tilewright db upgrade"
            )
        return
    if not server.running():
        note(f"starting the embedded PostgreSQL in {server.home}")
    schema.upgrade()
