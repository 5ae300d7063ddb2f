"""`schedules`: list, show, create, edit, pause, resume, delete, run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.arguments import CompilerName, JobLimits, PriorityOption, TrialsOption, describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.local.machine import uuid_of
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, note, print_json, print_table
from tilewright.service.cli.schedule_text import (
    PROBLEM_EXAMPLE,
    local_time,
    next_of,
    parsed_problems,
    print_schedule,
    problems_of,
)
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.service.operations.schedules.due_times import CRON_EXAMPLE
from tilewright.service.operations.staleness.verdict import Verdict

if TYPE_CHECKING:
    from tilewright.service.cli.connection import Connection
    from tilewright.service.operations.answers import ScheduleAnswer

app = typer.Typer(help="Schedules: tune problems again and again at set times.")

Wanted = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id.")]


class OverlapName(StrEnum):
    """The choice at a due time while an earlier job of the schedule is open."""

    SKIP = "skip"
    QUEUE = "queue"


class TargetName(StrEnum):
    """The kinds of targets that a schedule tunes."""

    PROBLEMS = "problems"
    STALE = "stale"
    IMPROVABLE = "improvable"
    DEMAND = "demand"


Problems = Annotated[
    list[str] | None,
    typer.Option("--problem", help=f'Kernel, shape, then dtype and options, like "{PROBLEM_EXAMPLE}"; repeatable.'),
]
Cron = typer.Option(
    "--cron", help=f'Minute hour day month weekday, or six fields with the second first, like "{CRON_EXAMPLE}".'
)
Target = typer.Option(
    "--target",
    help="What to tune: the given problems, or stale, improvable or requested ones as found at each due time.",
)
Top = typer.Option("--top", min=1, max=100, help="With a --target other than problems: most problems at one due time.")
KernelName = Annotated[
    str | None, typer.Option("--kernel", help="With a --target other than problems: only this kernel.")
]
TimeZone = typer.Option("--time-zone", help="Time zone of --cron, an IANA name such as Europe/Berlin.")
DeviceName = Annotated[
    str | None, typer.Option("--device", help="Only this device: cuda:0 or cpu of this machine, or a UUID.")
]
DeviceModel = Annotated[str | None, typer.Option("--device-model", help="Any device of this model.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Seconds of each job, with preparation, without finals.")
]
TargetMs = Annotated[float | None, typer.Option("--target-ms", help="Stop at the first trial this fast.")]
Variants = Annotated[list[str] | None, typer.Option("--variant", help="Only this variant; repeatable.")]
Compiler = Annotated[CompilerName | None, typer.Option("--compiler", help="Compiler for CUDA devices.")]
Priority = typer.Option("--priority", min=0, max=9, help="Higher goes first.")
Overlap = typer.Option("--overlap", help="What to do at a due time while an earlier job of the schedule is open.")


@app.command("list")
def list_schedules(as_json: JsonFlag = False) -> None:
    """List schedules, with the next due time of each."""
    with connect() as connection:
        found = connection.schedules()
    if as_json:
        print_json(found)
        return
    example = f'tilewright schedules create nightly --cron "{CRON_EXAMPLE}" --problem "{PROBLEM_EXAMPLE}"'
    print_table(
        ("id", "name", "cron", "time zone", "next", "last", "problems"),
        [
            (one.id, one.name, one.cron, one.time_zone, next_of(one), one.last_outcome, problems_of(one))
            for one in found
        ],
        nothing=f"No schedules yet. Create one: {example}",
    )


lists_by_default(app, list_schedules)


@app.command()
def show(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Show a schedule, its next five due times, and the outcome of the last one."""
    with connect() as connection:
        print_schedule(_named(connection, wanted), as_json=as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name; no other may have it.")],
    *,
    cron: Annotated[str, Cron],
    problem: Problems = None,
    target: Annotated[TargetName, Target] = TargetName.PROBLEMS,
    top: Annotated[int, Top] = 20,
    kernel: KernelName = None,
    time_zone: Annotated[str, TimeZone] = "UTC",
    device: DeviceName = None,
    device_model: DeviceModel = None,
    trials: TrialsOption = None,
    seconds: Seconds = None,
    target_ms: TargetMs = None,
    variant: Variants = None,
    compiler: Compiler = None,
    priority: PriorityOption = DEFAULT_PRIORITY,
    overlap: Annotated[OverlapName, Overlap] = OverlapName.SKIP,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a schedule. The default budget is 100 trials per job."""
    if target is TargetName.PROBLEMS and not problem:
        raise CommandError(f'Missing option --problem. Example: --problem "{PROBLEM_EXAMPLE}"', ExitCode.USAGE)
    limits = JobLimits(trials, seconds, target_ms, variant or (), compiler, priority)
    from tilewright.service.operations.requests import ScheduleRequest

    request = ScheduleRequest.model_validate(
        {
            "name": name,
            "cron": cron,
            "time_zone": time_zone,
            "target": target.value,
            "problems": parsed_problems(problem or []),
            "top": top,
            "kernel": kernel,
            "device_model": device_model,
            "device": uuid_of(device) if device else None,
            **limits.as_json(),
            "overlap": overlap.value,
            "enabled": not paused,
        }
    )
    with connect() as connection:
        made = connection.create_schedule(request)
    print_schedule(made, as_json=as_json)


@app.command()
def edit(
    wanted: Wanted,
    *,
    name: Annotated[str | None, typer.Option("--name", help="A new name.")] = None,
    cron: Annotated[str | None, Cron] = None,
    problem: Problems = None,
    target: Annotated[TargetName | None, Target] = None,
    top: Annotated[int | None, Top] = None,
    kernel: KernelName = None,
    time_zone: Annotated[str | None, TimeZone] = None,
    device: DeviceName = None,
    device_model: DeviceModel = None,
    trials: TrialsOption = None,
    seconds: Seconds = None,
    target_ms: TargetMs = None,
    variant: Variants = None,
    compiler: Compiler = None,
    priority: Annotated[int | None, Priority] = None,
    overlap: Annotated[OverlapName | None, Overlap] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change the given fields and leave the rest. --problem and --variant replace the whole list."""
    from tilewright.service.operations.requests import ScheduleChanges

    same = {"name": name, "cron": cron, "top": top, "kernel": kernel, "time_zone": time_zone, "priority": priority}
    changes: dict[str, Any] = {field: value for field, value in same.items() if value is not None}
    budget = {"trials": trials, "seconds": seconds, "target_ms": target_ms}
    budget = {field: value for field, value in budget.items() if value is not None}
    changes |= {field: one.value for field, one in (("compiler", compiler), ("overlap", overlap)) if one is not None}
    changes |= {"variants": variant} if variant else {}
    if target is not None or problem:  # fields of the other kind of target are cleared
        is_found = target not in {None, TargetName.PROBLEMS}
        changes |= {"target": target.value if target else "problems"}
        other: dict[str, Any] = {"problems": [], "variants": None} if is_found else {"kernel": kernel}
        changes |= other | ({"problems": parsed_problems(problem)} if problem else {})
    if device or device_model:  # a device implies its model; a model alone removes the device
        changes |= {"device": uuid_of(device) if device else None, "device_model": device_model}
    if not changes and not budget:
        raise CommandError(
            "Nothing to change: give at least one option, for instance --cron or --trials", ExitCode.USAGE
        )
    with connect() as connection:
        before = _named(connection, wanted)
        changes |= {"budget": before.budget | budget} if budget else {}
        changed = connection.edit_schedule(before.id, ScheduleChanges.model_validate(changes))
    print_schedule(changed, as_json=as_json)


@app.command()
def pause(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Pause a schedule; due times during the pause are skipped."""
    with connect() as connection:
        changed = connection.set_enabled(_named(connection, wanted).id, enabled=False)
    print_json(changed) if as_json else data.print(f"{changed.name} paused")


@app.command()
def resume(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Resume a paused schedule from its next due time on."""
    with connect() as connection:
        changed = connection.set_enabled(_named(connection, wanted).id, enabled=True)
    print_json(changed) if as_json else data.print(f"{changed.name} next {local_time(changed.next_at, changed)}")


@app.command()
def delete(wanted: Wanted) -> None:
    """Delete a schedule. Its jobs stay."""
    with connect() as connection:
        schedule = _named(connection, wanted)
        connection.delete_schedule(schedule.id)
    data.print(f"{schedule.name} deleted")
    if schedule.open_jobs:
        note(f"{schedule.open_jobs} of its jobs keep running; see them: tilewright jobs")


@app.command()
def run(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Queue a schedule's jobs now, even if it is paused."""
    with connect() as connection:
        jobs = connection.run_now(_named(connection, wanted).id)
    if as_json:
        print_json(jobs)
    else:
        print_table(("job", "problem", "state"), [(job.id, describe(job.problem), job.state) for job in jobs])


@app.command()
def comparisons(
    wanted: Wanted,
    verdict: Annotated[Verdict | None, typer.Option("--verdict", help="Only comparisons with this verdict.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show, the newest.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Compare the best before and after each of a schedule's jobs: better, same, worse or missing."""
    with connect() as connection:
        named = _named(connection, wanted)
        found = connection.comparisons(named.id, verdict=verdict.value if verdict else None, limit=limit).items
    if as_json:
        print_json(found)
        return
    print_table(
        ("when", "problem", "before ms", "after ms", "ratio", "verdict", "because"),
        [
            (
                local_time(one.compared_at or one.created_at, named),
                describe(one.problem),
                one.before_ms and f"{one.before_ms:.4g}",
                one.after_ms and f"{one.after_ms:.4g}",
                one.ratio and f"{one.ratio:.3f}",
                one.verdict or "open",
                one.reason,
            )
            for one in found
        ],
        nothing="None of its jobs has ended yet.",
    )


def _named(connection: Connection, wanted: str) -> ScheduleAnswer:
    """The schedule with that id, or else that name; raises NotFoundError."""
    known = connection.schedules()
    named = [one for one in known if str(one.id) == wanted] or [one for one in known if one.name == wanted]
    if not named:
        raise NotFoundError("schedule", wanted, [one.name for one in known])
    return named[0]
