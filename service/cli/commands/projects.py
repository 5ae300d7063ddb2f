"""`projects`: create, list, quotas; in the database directly, like keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.connection import database_session
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.output import JsonFlag, note, print_json, print_table

if TYPE_CHECKING:
    from tilewright.service.operations.access.projects import ProjectAnswer

app = typer.Typer(help="Projects: create, list, set quotas.")

_session = partial(database_session, "Projects", "/v1/projects")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The project's name.")]
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


@app.command("list")
def list_projects(as_json: JsonFlag = False) -> None:
    """List all projects with their quotas and what they have now."""
    from tilewright.service.operations.access import projects

    with _session("projects list") as session:
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


lists_by_default(app, list_projects)


@app.command()
def create(
    name: Name,
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
    with _session("projects create") as session:
        made = projects.create_project(session, ProjectRequest(name=name, **quotas))
    _print(made, "is created", as_json=as_json)


@app.command("set")
def set_quotas(
    name: Name,
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
    with _session("projects set") as session:
        changed = projects.change_quotas(session, name, ProjectQuotas(**quotas))
    _print(changed, "is changed", as_json=as_json)


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


def _print(project: ProjectAnswer, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(project)
    else:
        note(f"project {project.name} {what}")
