"""`kernels adopt`: folders of kernels, made from a Kernel Tuner script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.failure import CommandError, ExitCode
from tilewright.service.cli.output import JsonFlag, note, print_facts, print_json, warn
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.tuner.adopt.adopt import Adopted


def adopt_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="Script that calls Kernel Tuner.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="Arguments of the script, after --.")
    ] = None,
    *,
    folder: Annotated[Path, typer.Option("--folder", help="Where to make the kernels' folders.")] = Path(),
    python: Annotated[
        str, typer.Option("--python", help="Python that has the script's packages. Default: the one that runs this.")
    ] = "",
    time_limit: Annotated[float, typer.Option("--time-limit", min=1, help="Seconds that the script may take.")] = 600,
    contents_limit: Annotated[
        int, typer.Option("--contents-limit", min=0, help="Largest array that is kept in a file, in MiB.")
    ] = 256,
    as_json: JsonFlag = False,
) -> None:
    """Make the folder of each kernel that a Kernel Tuner script tunes. Runs the script, but tunes nothing."""
    if not script.is_file():
        what = f"{script} is a folder: name the script in it" if script.is_dir() else f"there is no script {script}"
        raise CommandError(what, ExitCode.USAGE)
    from tilewright.tuner.adopt.adopt import adopt

    adoption = adopt(
        script,
        arguments or (),
        target=folder,
        python=python or sys.executable,
        limit_s=time_limit,
        limit_bytes=contents_limit * 2**20,
        others=settings().kernel_folders,
    )
    if as_json:
        print_json({"notes": adoption.notes, "calls": [_as_json(call) for call in adoption.calls]})
    else:
        for text in adoption.notes:
            note(text)
        for call in adoption.calls:
            _print(call)
    if not any(call.folder for call in adoption.calls):
        raise CommandError(f"{script}: none of its {len(adoption.calls)} calls could be taken over")


def _as_json(call: Adopted) -> dict[str, object]:
    return {
        "call": call.call,
        "kernel_name": call.kernel_name,
        "folder": call.folder and str(call.folder),
        "refused": call.refused or None,
        "notes": list(call.notes),
    }


def _print(call: Adopted) -> None:
    if call.folder is None:
        warn(f"call {call.call}, {call.kernel_name}: {call.refused}")
        return
    facts = [("kernel", call.folder.name), *(("note", text) for text in call.notes)]
    print_facts([*facts, ("then", f"tilewright kernels check {call.folder}")])
