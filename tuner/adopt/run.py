"""Runs a script with its calls of Kernel Tuner intercepted, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.tuner.errors import TunerError

SCRIPT_SIDE = Path(__file__).parent / "script"
_START = (  # the package by its place: the script's Python need not have Tilewright, nor see any of its folders
    "import importlib.util, sys; name = 'tilewright_adoption'; "
    "spec = importlib.util.spec_from_file_location(name, sys.argv[1] + '/__init__.py', "
    "submodule_search_locations=[sys.argv[1]]); "
    "module = sys.modules[name] = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); "
    "from tilewright_adoption.main import main; main(*sys.argv[2:])"
)
LAST_LINES = 3


class AdoptionError(TunerError):
    """A script that no folder can be made of."""


@dataclass(frozen=True)
class Calls:
    """The calls of Kernel Tuner that a script made; `notes` are about the script as a whole."""

    records: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def intercepted(
    script: Path, arguments: Sequence[str], folder: Path, *, python: str, limit_s: float, limit_bytes: int
) -> Calls:
    """The calls of the script, their arrays' files in the folder; raises AdoptionError."""
    command = [python, "-c", _START, str(SCRIPT_SIDE), str(folder), str(limit_bytes), str(script), *arguments]
    log = folder / "script.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise AdoptionError(f"{python} cannot be started: {error.strerror}") from error
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise AdoptionError(f"{script} did not end within {limit_s:g} s: allow more by --time-limit") from error
        finally:
            _end(process)
    ended = folder / "end.json"
    if not ended.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = "; ".join(line.strip() for line in lines[-LAST_LINES:]) or "it said nothing"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise AdoptionError(f"the process of {script} {how}: {last}")
    return _calls(script, json.loads(ended.read_text(encoding="utf-8")), folder, python)


def _calls(script: Path, end: dict[str, Any], folder: Path, python: str) -> Calls:
    files = sorted(folder.glob("call*.json"), key=lambda path: int(path.stem.removeprefix("call")))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    failure = end.get("failure")
    if not records:
        if end.get("missing"):
            name = "this Python" if python == sys.executable else python
            fix = "install it there, or name the script's own Python by --python"
            raise AdoptionError(f"{script} needs the package {end['missing']}, which {name} does not have: {fix}")
        if failure:
            others = [name for name in end.get("stand_ins", ()) if name != "kernel_tuner"]
            why = f" ({' and '.join(others)} is not used here: NumPy stands in for it)" if others else ""
            raise AdoptionError(f"{script} failed before it called Kernel Tuner: {failure}{why}")
        raise AdoptionError(f"{script} calls neither tune_kernel nor run_kernel")
    notes = []
    if failure:
        notes.append(f"the script failed after call {len(records)}, whose result is made up, so calls may be missing: {failure}")  # fmt: skip  # noqa: E501
    others = [name for name in end["stand_ins"] if name != "kernel_tuner"]
    if others:
        notes.append(f"arrays of {', '.join(others)} were made by NumPy: there is no GPU here")
    return Calls(records, notes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the script, and what it has started and left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
