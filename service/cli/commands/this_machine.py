"""`doctor` and `db`: what this machine lacks; the database, its tables and its address."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer
from rich.text import Text

from tilewright.service.cli.connection import embedded_server, prepare_database
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, data, note, print_facts, print_json, tell
from tilewright.service.operations.caller import COMMAND_LINE, acting_as
from tilewright.service.settings import settings

database_app = typer.Typer(help="The database: upgrade, downgrade, current, url, stop, prune.", no_args_is_help=True)


@database_app.command()
def upgrade(as_json: JsonFlag = False) -> None:
    """Bring the tables to this version; does nothing if they are there already."""
    from tilewright.service.store import schema

    was_current = schema.at_head()
    schema.upgrade()
    tell(
        {"at_head": True, "changed": not was_current},
        "the database was already up to date" if was_current else "the database is now up to date",
        as_json=as_json,
    )


@database_app.command()
def downgrade(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Revert it; without --yes the step is only named.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Revert the last step of the tables, for the version before; what only that step's tables hold is lost.

    Stop workers and APIs first and make a backup.
    """
    from tilewright.service.store import schema

    step = schema.last_step()
    if step is None:
        raise CommandError(
            "the tables are not at this version, so its last step cannot be reverted. Run: tilewright db upgrade"
        )
    if not yes:
        raise CommandError(f"this reverts {step} What only its tables hold is lost. Add --yes to do it", ExitCode.USAGE)
    schema.downgrade_last()
    tell(
        {"reverted": step},
        f"reverted {step} Start the version before; this one needs tilewright db upgrade",
        as_json=as_json,
    )


@database_app.command()
def current(as_json: JsonFlag = False) -> None:
    """Say whether the tables are at this version; exit code 1 if they are not."""
    from tilewright.service.store import schema

    at_head = schema.at_head()
    if as_json:
        print_json({"at_head": at_head})
    else:
        data.print("at head" if at_head else "behind: run tilewright db upgrade")
    if not at_head:
        raise typer.Exit(ExitCode.FAILED)


@database_app.command()
def url(as_json: JsonFlag = False) -> None:
    """Print the database's address, for psql and other programs; a password in it is left out.

    Starts an embedded PostgreSQL that is not running; it then runs until `tilewright db stop`.
    """
    from tilewright.service.store.session import database_url

    server = embedded_server()
    was_running = server is None or server.running()
    address = without_password(database_url())
    if server is not None and not was_running:
        server.keep()
        note("PostgreSQL keeps running so that this address works; stop it: tilewright db stop")
    print_json({"url": address}) if as_json else data.print(address)


@database_app.command()
def stop(as_json: JsonFlag = False) -> None:
    """Stop the embedded PostgreSQL; exit code 1 while up, serve or a worker uses it."""
    server = embedded_server()
    if server is None:
        raise CommandError(
            "TILEWRIGHT_DATABASE_URL names a PostgreSQL that Tilewright did not start, so it cannot stop it",
            ExitCode.USAGE,
        )
    was_running = server.running()
    if not server.stop_if_unused():
        raise CommandError(
            "PostgreSQL is in use. Stop tilewright up, serve and worker; PostgreSQL stops with the last of them"
        )
    tell(
        {"was_running": was_running},
        "PostgreSQL has been stopped" if was_running else "PostgreSQL was not running",
        as_json=as_json,
    )


@database_app.command()
def prune(
    *,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", min=0, metavar="DAYS", help="Age of the trials. Default: TILEWRIGHT_SAMPLES_KEPT_DAYS."
        ),
    ] = None,
    audit_older_than: Annotated[
        float | None,
        typer.Option(
            "--audit-older-than", min=0, metavar="DAYS", help="Also delete entries of the audit log older than this."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete the single times of old trials, except those of winners and finalists; medians and intervals stay."""
    days = older_than if older_than is not None else settings().samples_kept_days
    if days is None and audit_older_than is None:
        raise CommandError(
            "No age is given: use --older-than DAYS, or set TILEWRIGHT_SAMPLES_KEPT_DAYS",
            ExitCode.USAGE,
        )
    prepare_database()
    counts: dict[str, int | bool] = {"dry_run": dry_run}
    with acting_as(COMMAND_LINE, "tilewright db prune"):
        if days is not None:
            counts |= _prune_samples(timedelta(days=days), dry_run=dry_run)
        if audit_older_than is not None:
            counts["audit_entries"] = _prune_entries(timedelta(days=audit_older_than), dry_run=dry_run)
    if as_json:
        print_json(counts)
    else:
        print_facts((name.replace("_", " "), value) for name, value in counts.items())


def _prune_samples(older_than: timedelta, *, dry_run: bool) -> dict[str, int]:
    from tilewright.service.operations.fleet import retention
    from tilewright.service.operations.transaction import transaction

    if dry_run:
        with transaction() as session:
            would = retention.prunable(session, older_than)
        return {"jobs": would.jobs, "trials": would.trials, "sample_bytes": would.sample_bytes}
    jobs = trials = 0
    more = True
    while more:
        with transaction() as session:
            pruned = retention.prune_samples(session, older_than)
        jobs, trials, more = jobs + pruned.jobs, trials + pruned.trials, pruned.more
    return {"jobs": jobs, "trials": trials}


def _prune_entries(older_than: timedelta, *, dry_run: bool) -> int:
    from tilewright.service.operations.fleet import retention
    from tilewright.service.operations.transaction import committed, transaction

    if dry_run:
        return committed(retention.count_entries)(older_than)
    gone, deleted = 0, 1
    while deleted:
        with transaction() as session:
            deleted = retention.forget_entries(session, older_than)
        gone += deleted
    return gone


def without_password(address: str) -> str:
    """The address with three stars in place of its password."""
    parts = urlsplit(address)
    if parts.password is None:
        return address
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@", 1)
    return urlunsplit(parts._replace(netloc=netloc))


STYLES = {"ok": "green", "absent": "yellow", "broken": "bold red"}
"""The colour of a check, by its state."""


def doctor(as_json: JsonFlag = False) -> None:
    """Check this machine; exit code 0 if `tilewright up` can run, 4 if only a device is missing."""
    from tilewright.service.cli.local.checks import State, run_all

    checks = run_all()
    broken = [check.name for check in checks if check.state is State.BROKEN]
    if as_json:
        print_json({"ok": not broken, "checks": checks})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            state = Text(f"{check.state.value:<7}", style=STYLES[check.state.value])
            data.print(state, f"{check.name:<{width}}", check.found)
            if check.remedy:
                data.print(f"{'':<7} {'':<{width}} -> {check.remedy}")
        data.print(f"broken: {', '.join(broken)}" if broken else "ready to run: tilewright up")
    if broken:
        raise typer.Exit(ExitCode.NO_DEVICE if broken == ["device"] else ExitCode.FAILED)
