"""Schedules as text: their facts, their times, and problems as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import print_facts, print_json
from tilewright.service.operations.parse import parse_open_shape, parse_options

if TYPE_CHECKING:
    from tilewright.service.operations.answers import ScheduleAnswer

PROBLEM_EXAMPLE = "gemm m=256,n=100,k=784 float32 trans_b=true"


def print_schedule(one: ScheduleAnswer, *, as_json: bool) -> None:
    """Prints the schedule with its next due times and the outcome of the last one."""
    if as_json:
        print_json(one)
        return
    last = one.last_fire_at and f"{local_time(one.last_fire_at, one)} {one.last_outcome or ''}".rstrip()
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
            *(("next", local_time(moment, one)) for moment in one.next_fires),
            ("last", last),
            ("because", one.last_reason),
            *(("last job", job_id) for job_id in one.last_jobs),
            ("open jobs", one.open_jobs or None),
        ]
    )


def parsed_problems(problems: Sequence[str]) -> list[dict[str, Any]]:
    """The problems, each a kernel, a shape, and perhaps a dtype and options."""
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
        "shape": parse_open_shape(words[0]),
        "options": parse_options(options),
        **({"dtype": dtypes[0]} if dtypes else {}),
    }


def problems_of(one: ScheduleAnswer) -> str:
    """The schedule's target, for a cell of a table."""
    problems = one.problems
    if one.target != "problems":
        return f"{one.target}, at most {one.top}"
    first = describe(problems[0]) if problems else ""
    return first if len(problems) < 2 else f"{first} and {len(problems) - 1} more"


def next_of(one: ScheduleAnswer) -> str:
    """The schedule's next due time, for a cell of a table."""
    return local_time(one.next_at, one) if one.next_at else "paused"


def local_time(moment: datetime | None, one: ScheduleAnswer) -> str:
    """The moment in the schedule's time zone; in UTC if this host does not know the zone."""
    if moment is None:
        return ""
    try:
        return f"{moment.astimezone(ZoneInfo(one.time_zone)):%Y-%m-%d %H:%M:%S %Z}"
    except ZoneInfoNotFoundError:
        return f"{moment:%Y-%m-%d %H:%M:%S %Z}"
