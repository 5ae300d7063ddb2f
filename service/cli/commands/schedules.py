"""`schedules`: list, show, create, edit, pause, resume, delete, run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from tilewright.service.cli.arguments import CompilerName, JobLimits, PriorityOption, TrialsOption, describe
from tilewright.service.cli.connection import Connection, connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.machine import uuid_of
from tilewright.service.cli.output import JsonFlag, data, note, print_facts, print_json, print_table
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import ScheduleAnswer
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.requests import DEFAULT_PRIORITY, ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules.due_times import CRON_EXAMPLE
from tilewright.service.operations.staleness.comparisons import Verdict

PROBLEM_EXAMPLE = "gemm m=256,n=100,k=784 float32 trans_b=true"

app = typer.Typer(help="Schedules: tune problems again and again at set times.")

Wanted = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name or id.")]


class OverlapName(StrEnum):
    """What happens at a due time while an earlier job of the schedule is open."""

    SKIP = "skip"
    QUEUE = "queue"


class TargetName(StrEnum):
    """What a schedule tunes."""

    PROBLEMS = "problems"
    STALE = "stale"
    IMPROVABLE = "improvable"
    DEMAND = "demand"


Problems = Annotated[
    list[str] | None,
    typer.Option("--problem", help=f'Kernel, shape, then dtype and options, like "{PROBLEM_EXAMPLE}"; repeatable.'),
]
Cron = typer.Option("--cron", help=f'Six fields: second minute hour day month weekday, like "{CRON_EXAMPLE}".')
Target = typer.Option(
    "--target",
    help="What to tune: the given problems, or stale, improvable or requested ones as found at each due time.",
)
Top = typer.Option("--top", min=1, max=100, help="With a --target other than problems: most problems at one due time.")
KernelName = Annotated[
    str | None, typer.Option("--kernel", help="With a --target other than problems: only this kernel.")
]
TimeZone = typer.Option("--time-zone", help="Time zone of the times, an IANA name.")
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
        [(one.id, one.name, one.cron, one.time_zone, _next(one), one.last_outcome, _problems(one)) for one in found],
        nothing=f"No schedules yet. Create one: {example}",
    )


lists_by_default(app, list_schedules)


@app.command()
def show(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Show a schedule, its next five due times, and the outcome of the last one."""
    with connect() as connection:
        _print(_named(connection, wanted), as_json=as_json)


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
    request = ScheduleRequest.model_validate(
        {
            "name": name,
            "cron": cron,
            "time_zone": time_zone,
            "target": target.value,
            "problems": _parsed(problem or []),
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
    _print(made, as_json=as_json)


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
        changes |= other | ({"problems": _parsed(problem)} if problem else {})
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
    _print(changed, as_json=as_json)


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
    print_json(changed) if as_json else data.print(f"{changed.name} next {_local(changed.next_at, changed)}")


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
                _local(one.compared_at or one.created_at, named),
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


def _print(one: ScheduleAnswer, *, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    last = one.last_fire_at and f"{_local(one.last_fire_at, one)} {one.last_outcome or ''}".rstrip()
    print_facts(
        [
            ("schedule", one.name),
            ("id", one.id),
            ("cron", f"{one.cron} ({one.time_zone})"),
            ("target", None if one.target == "problems" else f"{one.target}, at most {one.top} {one.kernel or ''}"),
            *(("problem", describe(problem)) for problem in one.problems),
            ("device", one.device or one.device_model),
            ("budget", ", ".join(f"{name} {value:g}" for name, value in one.budget.items() if value is not None)),
            ("variants", ", ".join(one.variants or [])),
            ("compiler", one.compiler),
            ("priority", one.priority),
            ("overlap", one.overlap),
            ("state", "enabled" if one.enabled else "paused"),
            *(("next", _local(moment, one)) for moment in one.next_fires),
            ("last", last),
            ("because", one.last_reason),
            *(("last job", job_id) for job_id in one.last_jobs),
            ("open jobs", one.open_jobs or None),
        ]
    )


def _named(connection: Connection, wanted: str) -> ScheduleAnswer:
    """The schedule with that id, or else that name; raises NotFoundError."""
    known = connection.schedules()
    named = [one for one in known if str(one.id) == wanted] or [one for one in known if one.name == wanted]
    if not named:
        raise NotFoundError("schedule", wanted, [one.name for one in known])
    return named[0]


def _parsed(problems: Sequence[str]) -> list[dict[str, Any]]:
    return [_problem(place, text) for place, text in enumerate(problems)]


def _problem(place: int, text: str) -> dict[str, Any]:
    """A problem parsed from text: kernel, shape, then a dtype and options in any order."""
    kernel, *words = text.split() or [""]
    options = [word for word in words[1:] if "=" in word]
    dtypes = [word for word in words[1:] if "=" not in word]
    if not words or len(dtypes) > 1:
        reason = f"--problem {text!r} (number {place + 1}) must be a kernel, a shape, and perhaps a dtype and options."
        raise CommandError(f'{reason} Example: "{PROBLEM_EXAMPLE}"', ExitCode.USAGE)
    return {
        "kernel": kernel,
        "shape": parse_shape(words[0]),
        "options": parse_options(options),
        **({"dtype": dtypes[0]} if dtypes else {}),
    }


def _problems(one: ScheduleAnswer) -> str:
    problems = one.problems
    if one.target != "problems":
        return f"{one.target}, at most {one.top}"
    first = describe(problems[0]) if problems else ""
    return first if len(problems) < 2 else f"{first} and {len(problems) - 1} more"


def _next(one: ScheduleAnswer) -> str:
    return _local(one.next_at, one) if one.next_at else "paused"


def _local(moment: datetime | None, one: ScheduleAnswer) -> str:
    """The moment in the schedule's time zone; in UTC if this host does not know the zone."""
    if moment is None:
        return ""
    try:
        return f"{moment.astimezone(ZoneInfo(one.time_zone)):%Y-%m-%d %H:%M:%S %Z}"
    except ZoneInfoNotFoundError:
        return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
