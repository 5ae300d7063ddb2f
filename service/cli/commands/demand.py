"""`demand`: requested problems that are not tuned yet, and their tuning; `record`: what a program would ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.service.cli.arguments import JobLimits, PriorityOption, SecondsOption, TrialsOption, describe
from tilewright.service.cli.commands.results import KernelOption, LimitOption, ModelOption
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.output import JsonFlag, print_json, print_table
from tilewright.service.operations import DEFAULT_PRIORITY
from tilewright.tuner.pytorch import record_command

app = typer.Typer(help="Demand: requested problems that are not tuned yet.")

NOTHING = "Every requested problem has been tuned. (The API counts requests; commands are not counted.)"


@app.command("list")
def list_demand(
    *, kernel: KernelOption = None, device_model: ModelOption = None, limit: LimitOption = 50, as_json: JsonFlag = False
) -> None:
    """List requested problems that are not tuned yet, the most requested first."""
    with connect() as connection:
        problems = connection.demand(kernel=kernel, device_model=device_model, limit=limit).items
    if as_json:
        print_json(problems)
        return
    print_table(
        ("requests", "problem", "device", "last"),
        [
            (one.count, describe(one.problem), one.device_model, f"{one.last_asked_at:%Y-%m-%d %H:%M}")
            for one in problems
        ],
        nothing=NOTHING,
    )


lists_by_default(app, list_demand)


@app.command()
def tune(
    *,
    top: Annotated[
        int, typer.Option("--top", min=1, max=100, help="How many problems, the most requested first.")
    ] = 10,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    trials: TrialsOption = None,
    seconds: SecondsOption = None,
    priority: PriorityOption = DEFAULT_PRIORITY,
    as_json: JsonFlag = False,
) -> None:
    """Queue a job for each of the most requested problems. The default budget is 100 trials each."""
    from tilewright.service.operations.requests import DemandJobs

    request = DemandJobs.model_validate({"budget": JobLimits(trials, seconds).budget(), "priority": priority})
    with connect() as connection:
        tuned = connection.tune_demand(request, top=top, kernel=kernel, device_model=device_model)
    if as_json:
        print_json(tuned)
        return
    print_table(
        ("requests", "problem", "device", "job"),
        [(one.count, describe(one.problem), one.device_model, one.job_id or one.refused) for one in tuned],
        nothing=NOTHING,
    )


def record(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="The program with its arguments, behind `--`.")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Write the recording to this file, as JSON.")] = None,
    demand: Annotated[bool, typer.Option("--demand", help="Tell the service what ran and is not tuned.")] = False,
) -> None:
    """Run a PyTorch program and print which of its operations could be tuned, and what that could gain."""
    try:
        status = record_command.run(program, out=out, demand=demand)
    except record_command.RecordError as error:
        raise CommandError(str(error)) from error
    raise typer.Exit(status)
