"""`capture`, `record` and `run`: programs of others, watched, or run on what is tuned."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, note, print_facts, print_json, print_table
from tilewright.service.settings import settings
from tilewright.tuner import start
from tilewright.tuner.capture.capture import FOLDER, Capture, CaptureError, capture
from tilewright.tuner.pytorch.recording import command as record_command

RUN = "run"


class WithProgram(TyperGroup):
    """Takes `capture [OPTIONS] -- PROGRAM` as `capture run [OPTIONS] -- PROGRAM`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer keeps the type of a context to itself
        """The words, with the command that a program is for."""
        if args and args[0] not in self.commands:
            if "--" in args:
                args = [RUN, *args]
            elif not args[0].startswith("-"):
                reason = f"there is no command {args[0]!r}, and a program stands behind --"
                raise CommandError(f"{reason}: tilewright capture -- {' '.join(args)}", ExitCode.USAGE)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


capture_app = typer.Typer(
    cls=WithProgram, help="Capture: what a program launches through Triton, PyCUDA or CuPy. Run it, show, adopt."
)

CaptureOption = Annotated[Path, typer.Option("--capture", help="Folder of the capture.")]


@capture_app.command(RUN)
def run(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="The program with its arguments, behind `--`.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")] = FOLDER,
    contents: Annotated[
        bool, typer.Option("--contents", help="Keep what arrays hold before and after the first launch of each kind.")
    ] = False,
    contents_limit: Annotated[
        float, typer.Option("--contents-limit", min=0, help="MiB of contents that may be kept in all.")
    ] = 256,
) -> None:
    """Run a program and write down what it launches. `run` may be left out: `tilewright capture -- python app.py`."""
    limit_bytes = int(contents_limit * 2**20) if contents else None
    try:
        captured = capture(program, out, limit_bytes=limit_bytes)
    except CaptureError as error:
        raise CommandError(str(error), error.status) from error
    counted = sum(row["calls"] for row in captured.launches)
    kinds = "1 kind" if len(captured.launches) == 1 else f"{len(captured.launches)} kinds"
    where = "" if out == FOLDER else f" --capture {shlex.quote(str(out))}"
    note(f"{counted} launches of {kinds} are in {out}. Then: tilewright capture show{where}")


@capture_app.command()
def show(capture_folder: CaptureOption = FOLDER, as_json: JsonFlag = False) -> None:
    """Show what was launched, what takes the most time first."""
    captured = _load(capture_folder)
    if as_json:
        print_json(captured.document)
        return
    print_table(
        ("kernel", "share", "time ms", "calls", "us a call", "grid", "block", "arguments", "source"),
        [_cells(row) for row in captured.launches],
    )


@capture_app.command()
def adopt(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="Kernel as `show` names it.")],
    *,
    capture_folder: CaptureOption = FOLDER,
    folder: Annotated[Path, typer.Option("--folder", help="Where to make the kernel's folder.")] = Path(),
) -> None:
    """Make the folder of a kernel that was captured, with the parameters that can be found."""
    from tilewright.tuner.capture.adopt import adopt_launch

    captured = _load(capture_folder)
    try:
        adopted = adopt_launch(captured, kernel, target=folder, others=settings().kernel_folders)
    except CaptureError as error:
        raise CommandError(str(error), error.status) from error
    made = adopted.folder or folder
    facts = [("kernel", made.name), *(("note", text) for text in adopted.notes)]
    print_facts([*facts, ("then", f"tilewright kernels check {made}")])


def _load(folder: Path) -> Capture:
    try:
        return Capture.load(folder)
    except CaptureError as error:
        raise CommandError(str(error), error.status) from error


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    time_ms, calls = row["time_ms"], row["calls"]
    return (
        row["name"],
        None if row["share"] is None else f"{row['share']:.1%}",
        None if time_ms is None else f"{time_ms:.4g}",
        calls if row["is_exact"] else f"about {calls}",
        None if time_ms is None or not calls else f"{time_ms / calls * 1e3:.4g}",
        "x".join(map(str, row["grid"])),
        "x".join(map(str, row["block"])),
        ", ".join(_words(one) for one in row["arguments"]),
        row["library"] if row["source"] is not None else "not found",
    )


def _words(argument: dict[str, Any]) -> str:
    """Dtype and shape, a number's value, or the bytes behind an address."""
    match argument:
        case {"kind": "tensor", "dtype": dtype, "shape": shape}:
            return f"{dtype} {'x'.join(map(str, shape)) or '1'}"
        case {"kind": "scalar", "value": value}:
            return f"{value:.6g}" if isinstance(value, float) else str(value)
        case {"kind": "pointer", "bytes": size_bytes}:
            return f"{size_bytes} bytes"
    return str(argument["kind"])


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


def run_tuned(
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="The program with its arguments, behind `--`.")
    ],
) -> None:
    """Run a program whose triton.autotune takes what is tuned, in the place of its own search."""
    try:
        status = start.run_watched(program, start.RUN, {})
    except OSError as error:
        raise CommandError(f"{program[0]}: {error.strerror}") from error
    raise typer.Exit(status)
