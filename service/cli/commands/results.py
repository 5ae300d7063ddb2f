"""`results`, `claims` and `report`: what was measured, what clients say of it, and steps written as pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, note, print_facts, print_json, print_table
from tilewright.service.cli.report import packing

if TYPE_CHECKING:
    from tilewright.service.operations.best.results import ResultAnswer


results_app = typer.Typer(help="Results: the best configurations as they were measured.")

StaleFlag = Annotated[bool | None, typer.Option("--stale/--fresh", help="Only stale results, or only the others.")]
ImprovableFlag = Annotated[
    bool | None, typer.Option("--improvable/--settled", help="Only results with untried variants, or only the others.")
]
RetractedFlag = Annotated[bool, typer.Option("--retracted", help="Show retracted results instead.")]
KernelOption = Annotated[str | None, typer.Option("--kernel", help="Only this kernel.")]
ModelOption = Annotated[str | None, typer.Option("--device-model", help="Only this device model.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show.")]


@results_app.command("list")
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


lists_by_default(results_app, list_results)


@results_app.command()
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


claims_app = typer.Typer(
    help="Claims: what clients say of configurations, wrong results or times, and what workers found."
)


@claims_app.command("list")
def list_claims(
    state: Annotated[
        str | None, typer.Option("--state", help="open, confirmed, refuted, measured or unverified.")
    ] = None,
    limit: LimitOption = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue after the previous page.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List claims, newest first."""
    with connect() as connection:
        page = connection.claims(state=state, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("id", "state", "problem", "device", "variant", "seen"),
        [(one.id, one.state, describe(one.problem), one.device_model, one.variant, one.seen) for one in page.items],
        nothing="No claims match.",
    )
    if page.next_cursor:
        note(f"more follow: --cursor {page.next_cursor}")


lists_by_default(claims_app, list_claims)


@claims_app.command("show")
def show_claim(
    claim_id: Annotated[
        int, typer.Argument(metavar="CLAIM", min=1, help="The claim's id; list them: tilewright claims")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show one claim, and what a worker found."""
    with connect() as connection:
        claim = connection.claim(claim_id)
    if as_json:
        print_json(claim)
        return
    values = ",".join(f"{name}={value}" for name, value in claim.configuration.items())
    print_facts(
        [
            ("state", claim.state),
            ("problem", describe(claim.problem)),
            ("device", f"{claim.device_model}, driver {claim.driver}"),
            ("configuration", f"{claim.variant} {values}"),
            ("seen", claim.seen),
            ("found", claim.found),
            ("job", claim.job_id),
        ]
    )


def report(  # noqa: PLR0917 - Typer reads options from parameters
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL",
            help="gemm, gemv or linear, step by step over many sizes; or any other kernel, your own too, at one size.",
        ),
    ],
    device: Annotated[
        str | None, typer.Option("--device", help="cuda:0, cpu, … Default: the first GPU, otherwise cpu.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")] = Path("reports"),
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="M=…,N=…", help="The one shape to measure, instead of the usual table."),
    ] = None,
    known: Annotated[
        list[Path] | None, typer.Option("--known", help="A bundle with configurations to use; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, default configurations only.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1, help="Start no further size after this many seconds.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a kernel's optimisation steps and write a report as Markdown and JSON. Takes up to three minutes."""
    from tilewright.service.cli.local.ladder import measured
    from tilewright.tuner.report.pages import write

    made = measured(kernel, device, shape=shape, known=known or (), quick=quick, seconds=seconds)
    paths = write(made, out)
    if as_json:
        print_json({"files": [str(path) for path in paths], "report": made.as_json()})
        return
    for path in paths:
        data.print(str(path))
