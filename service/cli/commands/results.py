"""`results`: the best configurations as measured, which are stale or improvable, and retracting one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.output import JsonFlag, data, print_json, print_table
from tilewright.service.cli.report import packing

if TYPE_CHECKING:
    from tilewright.service.operations.best.results import ResultAnswer

app = typer.Typer(help="Results: the best configurations as they were measured.")

StaleFlag = Annotated[bool | None, typer.Option("--stale/--fresh", help="Only stale results, or only the others.")]
ImprovableFlag = Annotated[
    bool | None, typer.Option("--improvable/--settled", help="Only results with untried variants, or only the others.")
]
RetractedFlag = Annotated[bool, typer.Option("--retracted", help="Show retracted results instead.")]
KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")]
ModelOption = Annotated[str | None, typer.Option("--device-model", help="Only this device model.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show.")]


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
    """List results, with what has changed since they were measured and which variants are untried."""
    with connect() as connection:
        rows = connection.results(
            kernel=kernel,
            device_model=device_model,
            stale=stale,
            improvable=improvable,
            retracted=retracted,
            limit=limit,
        ).items
    if as_json:
        print_json(rows)
        return
    print_table(
        ("id", "problem", "device", "variant", "ms", "origin", "stale", "untried", "retracted"),
        [_line(row) for row in rows],
        nothing="No results match.",
    )


lists_by_default(app, list_results)


@app.command()
def retract(
    result_id: Annotated[
        int, typer.Argument(metavar="RESULT", min=1, help="The result's id; list them: tilewright results")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why it is retracted; kept on record.")],
    as_json: JsonFlag = False,
) -> None:
    """Retract a result; the next best of its study, if there is one, takes its place."""
    with connect() as connection:
        result = connection.retract(result_id, reason)
    if as_json:
        print_json(result)
    else:
        data.print(f"{result.id} {describe(result.problem)} retracted: {result.retracted_reason}")


def _line(one: ResultAnswer) -> tuple[object, ...]:
    stale, untried = ", ".join(one.stale_because), ", ".join(one.unseen_variants)
    return (
        one.id,
        describe(one.problem),
        one.device_model,
        one.variant,
        f"{one.time_ms:.4g}{packing(one)}",
        one.environment.origin,
        stale,
        untried,
        one.retracted_reason,
    )
