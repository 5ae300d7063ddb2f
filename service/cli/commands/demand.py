"""`demand`: what was asked for and is not known, and its tuning."""

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

app = typer.Typer(help="Demand: what was asked for and is not known exactly.")

NOTHING = "Nothing was asked for that is not known. An API counts what it is asked; this command does not."


@app.callback(invoke_without_command=True)
def all_demand(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Demand: what was asked for and is not known exactly. Alone: the most asked for."""
    if context.invoked_subcommand is None:
        list_demand(as_json=as_json)


@app.command("list")
def list_demand(
    *, kernel: KernelOption = None, device_model: ModelOption = None, limit: LimitOption = 50, as_json: JsonFlag = False
) -> None:
    """List problems that have no best of their own, the most asked for first."""
    with connect() as connection:
        found = connection.demand(kernel=kernel, device_model=device_model, limit=limit).items
    if as_json:
        print_json(found)
        return
    print_table(
        ("asked", "problem", "device", "last"),
        [(one.count, describe(one.problem), one.device_model, f"{one.last_asked_at:%Y-%m-%d %H:%M}") for one in found],
        nothing=NOTHING,
    )


@app.command()
def tune(
    *,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="Problems, the most asked for first.")] = 10,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Trials of each job.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Seconds of searching of each job.")] = None,
    priority: Annotated[int, typer.Option("--priority", min=0, max=9, help="9 goes first.")] = DEFAULT_PRIORITY,
    as_json: JsonFlag = False,
) -> None:
    """Queue a job for each of the problems asked for most. Without a budget: 100 trials each."""
    try:
        request = DemandJobs.model_validate({"budget": JobLimits(trials, seconds).budget(), "priority": priority})
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", ExitCode.USAGE) from None
    with connect() as connection:
        found = connection.tune_demand(request, top=top, kernel=kernel, device_model=device_model)
    if as_json:
        print_json(found)
        return
    print_table(
        ("asked", "problem", "device", "job"),
        [(one.count, describe(one.problem), one.device_model, one.job_id or one.refused) for one in found],
        nothing=NOTHING,
    )
