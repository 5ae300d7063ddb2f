"""`keys`: create, list, rotate, revoke; in the database directly, so that the first key needs no other key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.connection import database_session
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.output import JsonFlag, data, note, print_json, print_table
from tilewright.service.operations.caller import Scope

if TYPE_CHECKING:
    from tilewright.service.operations.access.keys import KeyAnswer, NewKeyAnswer

app = typer.Typer(help="Access keys: create, list, rotate, revoke.")

_session = partial(database_session, "Keys", "POST /v1/keys")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]


@app.command("list")
def list_keys(as_json: JsonFlag = False) -> None:
    """List all keys, also expired and revoked ones; tokens are never shown."""
    from tilewright.service.operations.access import keys

    with _session("keys list") as session:
        found = keys.keys(session)
    if as_json:
        print_json({"items": [key.model_dump(mode="json") for key in found]})
        return
    print_table(
        ("name", "token", "scope", "project", "valid", "expires", "last used"),
        [
            (
                k.name,
                f"{k.prefix}…",
                k.scope.value,
                k.project,
                _force(k),
                _day(k, "expires_at"),
                _day(k, "last_used_at"),
            )
            for k in found
        ],
        nothing="No keys yet. Create one: tilewright keys create NAME --scope tune",
    )


lists_by_default(app, list_keys)


@app.command()
def create(
    name: Name,
    *,
    scope: Annotated[
        Scope,
        typer.Option(
            "--scope", help="read: queries only; tune: also jobs and schedules; admin: also keys and imports."
        ),
    ] = Scope.READ,
    expires_days: Annotated[float | None, typer.Option("--expires-days", help="Days until the key expires.")] = None,
    max_trials: Annotated[int | None, typer.Option("--max-trials", help="Largest trial budget of a job.")] = None,
    max_seconds: Annotated[float | None, typer.Option("--max-seconds", help="Largest time budget of a job.")] = None,
    max_open_jobs: Annotated[int | None, typer.Option("--max-open-jobs", help="Most open jobs at one time.")] = None,
    project: Annotated[str, typer.Option("--project", help="The project that it belongs to.")] = "default",
    as_json: JsonFlag = False,
) -> None:
    """Create a key and print its token, which cannot be shown again."""
    from tilewright.service.operations.access import keys
    from tilewright.service.operations.requests import KeyRequest

    request = KeyRequest(
        name=name,
        scope=scope,
        expires_days=expires_days,
        max_trials=max_trials,
        max_seconds=max_seconds,
        max_open_jobs=max_open_jobs,
        project=project,
    )
    with _session("keys create") as session:
        made = keys.create_key(session, request)
    _print_new(made, as_json=as_json)


@app.command()
def rotate(
    name: Name,
    grace_s: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds for which the old token stays valid.")
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Print a new token for a key; the old one expires after --grace seconds."""
    from tilewright.service.operations.access import keys

    with _session("keys rotate") as session:
        made = keys.rotate_key(session, name, grace_s)
    _print_new(made, as_json=as_json)


@app.command()
def revoke(name: Name, as_json: JsonFlag = False) -> None:
    """Revoke a key: within five seconds every API refuses it."""
    from tilewright.service.operations.access import keys

    with _session("keys revoke") as session:
        ended = keys.revoke_key(session, name)
    if as_json:
        print_json({"items": [key.model_dump(mode="json") for key in ended]})
    else:
        note(f"key {name} is revoked")


def _force(key: KeyAnswer) -> str:
    return "yes" if key.in_force else "revoked" if key.revoked_at else "expired"


def _day(key: KeyAnswer, field: str) -> str | None:
    value = getattr(key, field)
    return None if value is None else f"{value:%Y-%m-%d %H:%M}"


def _print_new(made: NewKeyAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    data.print(made.token, soft_wrap=True)
    note(f"key {made.name}, scope {made.scope.value}; the token cannot be shown again")
