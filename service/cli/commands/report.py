"""`report`: a kernel's optimisation steps, measured on a device of this machine and written as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.service.cli.output import JsonFlag, data, print_json


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
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="On a GPU, count memory traffic with ncu.")
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Measure a kernel's optimisation steps and write a report: HTML, Markdown, CSV. Takes up to three minutes."""
    from tilewright.service.cli.ladder import measured
    from tilewright.tuner.report.pages import write

    made = measured(kernel, device, shape=shape, known=known or (), quick=quick, seconds=seconds, counters=counters)
    paths = write(made, out)
    if as_json:
        print_json({"files": [str(path) for path in paths], "report": made.as_json()})
        return
    for path in paths:
        data.print(str(path))
