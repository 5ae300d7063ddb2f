"""`schedules`: list, show, create, edit, pause, resume, delete, run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from tilewright.service.cli.arguments import CompilerName, JobLimits, describe
from tilewright.service.cli.connection import Connection, connect
from tilewright.service.cli.failure import CommandError, ExitCode
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
Target = typer.Option("--target", help="What to tune: --problem, or what is found at each due time.")
Top = typer.Option("--top", min=1, max=100, help="Most problems of one fire that are found.")
KernelName = Annotated[str | None, typer.Option("--kernel", help="Find only problems of this kernel.")]
TimeZone = typer.Option("--time-zone", help="IANA name in which the times are meant.")
DeviceName = Annotated[str | None, typer.Option("--device", help="Only this device, as for tune.")]
DeviceModel = Annotated[str | None, typer.Option("--device-model", help="Any device of this model.")]
Trials = Annotated[int | None, typer.Option("--trials", help="Trials of each job.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="Seconds of each job; preparing counts, finals come on top.")
]
TargetMs = Annotated[float | None, typer.Option("--target-ms", help="Stop at the first trial this fast.")]
Variants = Annotated[list[str] | None, typer.Option("--variant", help="Only this variant; repeatable.")]
Compiler = Annotated[CompilerName | None, typer.Option("--compiler", help="For CUDA devices.")]
Priority = typer.Option("--priority", min=0, max=9, help="9 goes first.")
Overlap = typer.Option("--overlap", help="When due while an earlier job of it is open.")


@app.callback(invoke_without_command=True)
def schedules(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Schedules: list, show, create, edit, pause, resume, delete, run. Alone: all of them."""
    if context.invoked_subcommand is None:
        _list(as_json=as_json)


@app.command("list")
def list_schedules(as_json: JsonFlag = False) -> None:
    """List schedules, with when each fires next."""
    _list(as_json=as_json)


@app.command()
def show(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Show a schedule, its next five due times, and what came of its last."""
    with connect() as connection:
        _print(_named(connection, wanted), as_json=as_json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of its own.")],
    *,
    cron: Annotated[str, Cron],
    problem: Problems = None,
    target: Annotated[TargetName, Target] = TargetName.PROBLEMS,
    top: Annotated[int, Top] = 20,
    kernel: KernelName = None,
    time_zone: Annotated[str, TimeZone] = "UTC",
    device: DeviceName = None,
    device_model: DeviceModel = None,
    trials: Trials = None,
    seconds: Seconds = None,
    target_ms: TargetMs = None,
    variant: Variants = None,
    compiler: Compiler = None,
    priority: Annotated[int, Priority] = DEFAULT_PRIORITY,
    overlap: Annotated[OverlapName, Overlap] = OverlapName.SKIP,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create a schedule. Without a budget: 100 trials a job."""
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
            **limits_as_json(limits),
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
    trials: Trials = None,
    seconds: Seconds = None,
    target_ms: TargetMs = None,
    variant: Variants = None,
    compiler: Compiler = None,
    priority: Annotated[int | None, Priority] = None,
    overlap: Annotated[OverlapName | None, Overlap] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change what is named and leave the rest. --problem and --variant replace all that there were."""
    same = {"name": name, "cron": cron, "top": top, "kernel": kernel, "time_zone": time_zone, "priority": priority}
    changes: dict[str, Any] = {field: value for field, value in same.items() if value is not None}
    budget = {"trials": trials, "seconds": seconds, "target_ms": target_ms}
    budget = {field: value for field, value in budget.items() if value is not None}
    changes |= {field: one.value for field, one in (("compiler", compiler), ("overlap", overlap)) if one is not None}
    changes |= {"variants": variant} if variant else {}
    if target is not None or problem:  # what only the other kind of target has goes
        found = target not in {None, TargetName.PROBLEMS}
        changes |= {"target": target.value if target else "problems"}
        other: dict[str, Any] = {"problems": [], "variants": None} if found else {"kernel": kernel}
        changes |= other | ({"problems": _parsed(problem)} if problem else {})
    if device or device_model:  # a device tells its model; a model alone frees from the device
        changes |= {"device": uuid_of(device) if device else None, "device_model": device_model}
    if not changes and not budget:
        raise CommandError("Name what to change, for instance --cron or --trials: see --help", ExitCode.USAGE)
    with connect() as connection:
        before = _named(connection, wanted)
        changes |= {"budget": before.budget | budget} if budget else {}
        changed = connection.edit_schedule(before.id, ScheduleChanges.model_validate(changes))
    _print(changed, as_json=as_json)


@app.command()
def pause(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Stop a schedule from firing; what is due meanwhile is left out."""
    with connect() as connection:
        changed = connection.set_enabled(_named(connection, wanted).id, enabled=False)
    print_json(changed) if as_json else data.print(f"{changed.name} paused")


@app.command()
def resume(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Let a schedule fire again, from its next due time on."""
    with connect() as connection:
        changed = connection.set_enabled(_named(connection, wanted).id, enabled=True)
    print_json(changed) if as_json else data.print(f"{changed.name} next {_local(changed.next_at, changed)}")


@app.command()
def delete(wanted: Wanted) -> None:
    """Delete a schedule. Its jobs stay."""
    with connect() as connection:
        found = _named(connection, wanted)
        connection.delete_schedule(found.id)
    data.print(f"{found.name} deleted")
    if found.open_jobs:
        note(f"{found.open_jobs} of its jobs go on: tilewright jobs")


@app.command()
def run(wanted: Wanted, as_json: JsonFlag = False) -> None:
    """Queue a schedule's jobs once now, also of a paused one."""
    with connect() as connection:
        jobs = connection.run_now(_named(connection, wanted).id)
    if as_json:
        print_json(jobs)
    else:
        print_table(("job", "problem", "state"), [(job.id, describe(job.problem), job.state) for job in jobs])


@app.command()
def comparisons(
    wanted: Wanted,
    verdict: Annotated[Verdict | None, typer.Option("--verdict", help="Only those.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="At most so many, the newest.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show what a schedule's jobs came to: better, same, worse or missing."""
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
        nothing="No job of it is over yet.",
    )


def limits_as_json(limits: JobLimits) -> dict[str, Any]:
    """What of a request the limits are."""
    return {
        "budget": limits.budget(),
        "variants": list(limits.variants) or None,
        "compiler": limits.compiler.value if limits.compiler else None,
        "priority": limits.priority,
    }


def _list(*, as_json: bool) -> None:
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
    """The schedule of that id, else of that name; raises NotFoundError."""
    found = connection.schedules()
    by = [one for one in found if str(one.id) == wanted] or [one for one in found if one.name == wanted]
    if not by:
        raise NotFoundError("schedule", wanted, [one.name for one in found])
    return by[0]


def _parsed(problems: Sequence[str]) -> list[dict[str, Any]]:
    return [_problem(place, text) for place, text in enumerate(problems)]


def _problem(place: int, text: str) -> dict[str, Any]:
    """A problem as it is typed: kernel, shape, then a dtype and options in any order."""
    kernel, *words = text.split() or [""]
    options = [word for word in words[1:] if "=" in word]
    dtypes = [word for word in words[1:] if "=" not in word]
    if not words or len(dtypes) > 1:
        reason = f"--problem {text!r} (number {place + 1}) is not a kernel, a shape, a dtype and options."
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
    """The moment on a clock of the schedule's time zone; in UTC where this host does not know the zone."""
    if moment is None:
        return ""
    try:
        return f"{moment.astimezone(ZoneInfo(one.time_zone)):%Y-%m-%d %H:%M:%S %Z}"
    except ZoneInfoNotFoundError:
        return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
