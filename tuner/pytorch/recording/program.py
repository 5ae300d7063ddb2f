"""A recording of a whole program, from its import of PyTorch to its end: what `tilewright record` starts in it."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from tilewright.kernels.errors import KernelError
from tilewright.tuner.errors import TunerError
from tilewright.tuner.pytorch.recording.recorder import Recording, record


def start(instructions: str) -> None:
    """Records the calling thread until the process ends, then acts on the options of `record_command`."""
    told = json.loads(instructions)
    context = record()
    seen = context.__enter__()

    def finish() -> None:
        context.__exit__(None, None, None)
        if seen.entries:
            Path(told["seen"]).touch()  # for the command, which says so where nothing was
            _finish(seen, told.get("out"), sends_demand=bool(told.get("demand")))

    atexit.register(finish)


def _finish(seen: Recording, out: str | None, *, sends_demand: bool) -> None:
    sys.stderr.write(f"{seen.report()}\n")
    if out is not None:
        _write(Path(out), seen)
    if sends_demand:
        try:
            sys.stderr.write(f"The service was told of {seen.demand()} problems.\n")
        except (TunerError, KernelError, OSError, ValueError) as error:
            sys.stderr.write(f"The service was not told of the problems: {error}\n")


def _write(path: Path, seen: Recording) -> None:
    """Writes the recording as JSON; another process of the same program gets a name of its own."""
    rows = [
        {
            "operator": entry.operator,
            "tensors": entry.call,
            "device": entry.device,
            "problem": entry.problem.as_json() if entry.problem else None,
            "reason": entry.reason,
            "calls": entry.calls,
            "time_ms": entry.time_ms,
            "share": seen.share(entry),
        }
        for entry in seen
    ]
    text = json.dumps({"format": "tilewright-recording/1", "total_ms": seen.total_ms, "operators": rows}, indent=1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        path.with_stem(f"{path.stem}-{os.getpid()}").write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}; the recording was not written\n")
