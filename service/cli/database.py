"""`db`: the tables and where they are."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import typer

from tilewright.service.cli.connection import is_at_head
from tilewright.service.cli.failure import ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_json
from tilewright.service.store import schema
from tilewright.service.store.session import database_url

app = typer.Typer(help="The database: upgrade, current, url.", no_args_is_help=True)


@app.command()
def upgrade(as_json: JsonFlag = False) -> None:
    """Bring the tables to this version; nothing happens where they are."""
    was_current = is_at_head()
    if not was_current:
        schema.upgrade()
    if as_json:
        print_json({"at_head": True, "changed": not was_current})
    else:
        note("the database was up to date" if was_current else "the database is up to date now")


@app.command()
def current(as_json: JsonFlag = False) -> None:
    """Say whether the tables are at this version; exit code 1 where not."""
    at_head = is_at_head()
    if as_json:
        print_json({"at_head": at_head})
    else:
        data.print("at head" if at_head else "behind: run tilewright db upgrade")
    if not at_head:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def url(as_json: JsonFlag = False) -> None:
    """Print the database's address, for psql and for others; a password in it is left out."""
    address = without_password(database_url())
    print_json({"url": address}) if as_json else data.print(address)


def without_password(address: str) -> str:
    """The same address with its password, if any, replaced by three stars."""
    parts = urlsplit(address)
    if parts.password is None:
        return address
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@", 1)
    return urlunsplit(parts._replace(netloc=netloc))
