"""`demand`: requested problems that are not tuned yet, and their tuning."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from tilewright.service.cli.arguments import JobLimits, describe
from tilewright.service.cli.commands.results import KernelOption, LimitOption, ModelOption
from tilewright.service.cli.connection import connect
from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, print_json, print_table
from tilewright.service.operations.requests import DEFAULT_PRIORITY, DemandJobs

app = typer.Typer(help="Demand: requested problems that are not tuned yet.")

NOTHING = "Every requested problem has been tuned. (The API counts requests; commands are not counted.)"


@app.callback(invoke_without_command=True)
def all_demand(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Demand: requested problems that are not tuned yet. Without a subcommand: list them."""
    if context.invoked_subcommand is None:
        list_demand(as_json=as_json)


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


@app.command()
def tune(
    *,
    top: Annotated[
        int, typer.Option("--top", min=1, max=100, help="How many problems, the most requested first.")
    ] = 10,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Trials of each job.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Seconds of search of each job.")] = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="Higher goes first.")] = DEFAULT_PRIORITY,
    as_json: JsonFlag = False,
) -> None:
    """Queue a job for each of the most requested problems. The default budget is 100 trials each."""
    try:
        request = DemandJobs.model_validate({"budget": JobLimits(trials, seconds).budget(), "priority": priority})
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", ExitCode.USAGE) from None
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
