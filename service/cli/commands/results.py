"""`results`: what was measured, which of it is stale or improvable, and its retraction."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.output import JsonFlag, data, print_json, print_table
from tilewright.service.operations.best.results import ResultAnswer

app = typer.Typer(help="Results: the best configurations as they were measured.")

StaleFlag = Annotated[bool | None, typer.Option("--stale/--fresh", help="Only stale ones, or only others.")]
ImprovableFlag = Annotated[
    bool | None, typer.Option("--improvable/--settled", help="Only with variants left to try, or only others.")
]
RetractedFlag = Annotated[bool, typer.Option("--retracted", help="Retracted ones instead.")]
KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only of this kernel.")]
ModelOption = Annotated[str | None, typer.Option("--device-model", help="Only on this device model.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help="At most so many, the newest.")]


@app.callback(invoke_without_command=True)
def all_results(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Results: the best configurations as they were measured. Alone: the newest."""
    if context.invoked_subcommand is None:
        list_results(as_json=as_json)


@app.command("list")
def list_results(
    *,
    stale: StaleFlag = None,
    improvable: ImprovableFlag = None,
    retracted: RetractedFlag = False,
    kernel: KernelOption = None,
    device_model: ModelOption = None,
    limit: LimitOption = 50,
    as_json: JsonFlag = False,
) -> None:
    """List results, with what moved on since and how many variants are left to try."""
    with connect() as connection:
        found = connection.results(
            kernel=kernel,
            device_model=device_model,
            stale=stale,
            improvable=improvable,
            retracted=retracted,
            limit=limit,
        ).items
    if as_json:
        print_json(found)
        return
    print_table(
        ("id", "problem", "device", "variant", "ms", "origin", "stale", "untried", "retracted"),
        [_line(one) for one in found],
        nothing="There are no such results.",
    )


@app.command()
def retract(
    result_id: Annotated[int, typer.Argument(metavar="RESULT", min=1, help="Its id: tilewright results")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept on record.")],
    as_json: JsonFlag = False,
) -> None:
    """Withdraw a result; the next best of its study takes its place, where there is one."""
    with connect() as connection:
        found = connection.retract(result_id, reason)
    if as_json:
        print_json(found)
    else:
        data.print(f"{found.id} {describe(found.problem)} retracted: {found.retracted_reason}")


def _line(one: ResultAnswer) -> tuple[object, ...]:
    stale, untried = ", ".join(one.stale_because), ", ".join(one.unseen_variants)
    return (
        one.id,
        describe(one.problem),
        one.device_model,
        one.variant,
        f"{one.time_ms:.4g}",
        one.environment.origin,
        stale,
        untried,
        one.retracted_reason,
    )
