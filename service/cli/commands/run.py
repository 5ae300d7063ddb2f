"""`run`: a program with Triton kernels, unchanged, on what is tuned."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.service.cli.failure import CommandError
from tilewright.tuner.start import RUN, run_watched


def run(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="The program with its arguments, behind `--`.")
    ],
) -> None:
    """Run a program whose triton.autotune takes what is tuned, in the place of its own search."""
    try:
        status = run_watched(program, RUN, {})
    except OSError as error:
        raise CommandError(f"{program[0]}: {error.strerror}") from error
    raise typer.Exit(status)
