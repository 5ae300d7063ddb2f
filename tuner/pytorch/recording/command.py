"""`tilewright record`: runs a program with a recording in it. Needs no PyTorch itself; the program's Python does."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilewright.tuner.start import run_watched

NOTHING = (
    "Nothing was recorded: the program did not import PyTorch, or ran none of its operators in the thread that did."
)


class RecordError(Exception):
    """The program cannot be run, or the recording not be written."""


def run(command: Sequence[str], *, out: Path | None = None, demand: bool = False) -> int:
    """The program's exit code once it has ended; raises RecordError, in one line, where it does not start."""
    if out is not None and out.exists():
        raise RecordError(f"{out} is there already; name another file, or remove it")
    if out is not None and not out.absolute().parent.is_dir():
        raise RecordError(f"{out}: there is no folder {out.absolute().parent}")
    with tempfile.TemporaryDirectory(prefix="tilewright-record-") as folder:
        seen = Path(folder) / "seen"
        told = {"out": str(out.absolute()) if out else None, "demand": demand, "seen": str(seen)}
        try:
            status = run_watched(command, "TILEWRIGHT_RECORD", told)
        except OSError as error:
            raise RecordError(f"{command[0]}: {error.strerror}") from error
        if not seen.exists():
            sys.stderr.write(f"{NOTHING}\n")
    return status


def main(words: Sequence[str]) -> int:
    """The exit code of `tilewright record` in a light installation."""
    parser = argparse.ArgumentParser(prog="tilewright record", usage="%(prog)s [--out FILE] [--demand] -- PROGRAM …")
    parser.add_argument("--out", type=Path, help="write the recording to this file, as JSON")
    parser.add_argument("--demand", action="store_true", help="tell the service what ran and is not tuned")
    parser.add_argument("program", nargs="+", metavar="PROGRAM", help="the program with its arguments, behind --")
    given = parser.parse_args(list(words))
    try:
        return run(given.program, out=given.out, demand=given.demand)
    except RecordError as error:
        sys.stderr.write(f"error {error}\n")
        return 1
