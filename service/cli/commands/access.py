"""`keys` and `projects`: in the database directly, so that the first key needs no other key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.connection import database_session
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, note, print_json, print_table, tell
from tilewright.service.operations.caller import Scope

if TYPE_CHECKING:
    from tilewright.service.operations.access.keys import KeyAnswer, NewKeyAnswer
    from tilewright.service.operations.access.projects import ProjectAnswer


keys_app = typer.Typer(help="Access keys: create, list, rotate, revoke.")

_keys_session = partial(database_session, "Keys", "POST /v1/keys")

KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]


@keys_app.command("list")
def list_keys(as_json: JsonFlag = False) -> None:
    """List all keys, also expired and revoked ones; tokens are never shown."""
    from tilewright.service.operations.access import keys

    with _keys_session("keys list") as session:
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


lists_by_default(keys_app, list_keys)


@keys_app.command("create")
def create_key(
    name: KeyName,
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
    with _keys_session("keys create") as session:
        made = keys.create_key(session, request)
    _print_new(made, as_json=as_json)


@keys_app.command()
def rotate(
    name: KeyName,
    grace_s: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds for which the old token stays valid.")
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Print a new token for a key; the old one expires after --grace seconds."""
    from tilewright.service.operations.access import keys

    with _keys_session("keys rotate") as session:
        made = keys.rotate_key(session, name, grace_s)
    _print_new(made, as_json=as_json)


@keys_app.command()
def revoke(name: KeyName, as_json: JsonFlag = False) -> None:
    """Revoke a key: within five seconds every API refuses it."""
    from tilewright.service.operations.access import keys

    with _keys_session("keys revoke") as session:
        ended = keys.revoke_key(session, name)
    tell({"items": [key.model_dump(mode="json") for key in ended]}, f"key {name} is revoked", as_json=as_json)


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


projects_app = typer.Typer(help="Projects: create, list, set quotas.")

_projects_session = partial(database_session, "Projects", "/v1/projects")

ProjectName = Annotated[str, typer.Argument(metavar="NAME", help="The project's name.")]
OpenJobs = Annotated[
    int | None,
    typer.Option("--max-open-jobs", min=0, help="Most queued and running jobs of all its keys; 0: no quota."),
]
Seconds = Annotated[
    float | None,
    typer.Option("--max-queued-seconds", min=0, help="Most seconds that its open jobs may take together; 0: no quota."),
]
Schedules = Annotated[
    int | None, typer.Option("--max-schedules", min=0, help="Most schedules of all its keys; 0: no quota.")
]


@projects_app.command("list")
def list_projects(as_json: JsonFlag = False) -> None:
    """List all projects with their quotas and what they have now."""
    from tilewright.service.operations.access import projects

    with _projects_session("projects list") as session:
        found = projects.projects(session)
    if as_json:
        print_json({"items": [project.model_dump(mode="json") for project in found]})
        return
    print_table(
        ("name", "keys", "open jobs", "schedules", "queued seconds"),
        [
            (p.name, p.keys, _of(p.open_jobs, p.max_open_jobs), _of(p.schedules, p.max_schedules), _most_s(p))
            for p in found
        ],
    )


lists_by_default(projects_app, list_projects)


@projects_app.command("create")
def create_project(
    name: ProjectName,
    *,
    max_open_jobs: OpenJobs = None,
    max_queued_seconds: Seconds = None,
    max_schedules: Schedules = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a project; `tilewright keys create NAME --project …` then makes its keys."""
    from tilewright.service.operations.access import projects
    from tilewright.service.operations.requests import ProjectRequest

    quotas = _quotas(max_open_jobs, max_queued_seconds, max_schedules)
    with _projects_session("projects create") as session:
        made = projects.create_project(session, ProjectRequest(name=name, **quotas))
    _print_project(made, "is created", as_json=as_json)


@projects_app.command("set")
def set_quotas(
    name: ProjectName,
    *,
    max_open_jobs: OpenJobs = None,
    max_queued_seconds: Seconds = None,
    max_schedules: Schedules = None,
    as_json: JsonFlag = False,
) -> None:
    """Change quotas of a project; those that are not named stay."""
    from tilewright.service.operations.access import projects
    from tilewright.service.operations.requests import ProjectQuotas

    quotas = _quotas(max_open_jobs, max_queued_seconds, max_schedules)
    with _projects_session("projects set") as session:
        changed = projects.change_quotas(session, name, ProjectQuotas(**quotas))
    _print_project(changed, "is changed", as_json=as_json)


def _quotas(max_open_jobs: int | None, max_queued_seconds: float | None, max_schedules: int | None) -> dict[str, Any]:
    given = {
        "max_open_jobs": max_open_jobs,
        "max_queued_seconds": max_queued_seconds,
        "max_schedules": max_schedules,
    }
    return {name: value or None for name, value in given.items() if value is not None}


def _of(count: int, most: int | None) -> str:
    return f"{count}" if most is None else f"{count} of {most}"


def _most_s(project: ProjectAnswer) -> str | None:
    return None if project.max_queued_seconds is None else f"at most {project.max_queued_seconds:g}"


def _print_project(project: ProjectAnswer, what: str, *, as_json: bool) -> None:
    tell(project, f"project {project.name} {what}", as_json=as_json)
