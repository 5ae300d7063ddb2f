"""A capture: the folder that a captured program's launches are kept in."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.tuner.errors import TunerError
from tilewright.tuner.start import run_watched

FORMAT = "tilewright-capture/1"
DOCUMENT = "capture.json"
FOLDER = Path("tilewright-capture")
ROW_KEYS = frozenset(
    [
        "name",
        "entry",
        "library",
        "source",
        "options",
        "folders",
        "grid",
        "block",
        "shared_bytes",
        "arguments",
        "constants",
        "calls",
        "is_exact",
        "time_ms",
        "share",
    ]
)
FAILED, USAGE, NOTHING_FOUND = 1, 2, 3


class CaptureError(TunerError):
    """A program that nothing can be captured of; `status` is the exit code that says so."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Capture:
    """A program's launches, the longest first; `launches` are rows as the document has them."""

    folder: Path
    program: list[str]
    launches: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path) -> Capture:
        """The capture in that folder; raises CaptureError."""
        try:
            document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            hint = "make one: tilewright capture -- python app.py, or name its folder by --capture"
            raise CaptureError(f"{folder} holds no capture: {hint}", USAGE) from error
        except OSError as error:
            raise CaptureError(f"{folder / DOCUMENT} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CaptureError(f"{folder / DOCUMENT} is no JSON: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CaptureError(f"{folder / DOCUMENT} is no capture of the format {FORMAT}")
        rows = document.get("launches")
        if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= ROW_KEYS for row in rows):
            raise CaptureError(
                f"{folder / DOCUMENT} lacks what a capture has of each launch: capture the program again"
            )
        return cls(folder, document.get("program", []), rows)

    def launch(self, name: str) -> dict[str, Any]:
        """The row of that name; raises CaptureError."""
        for row in self.launches:
            if row["name"] == name:
                return row
        names = ", ".join(row["name"] for row in self.launches)
        raise CaptureError(f"there is no kernel {name!r} in {self.folder}. Kernels: {names}", USAGE)

    @property
    def document(self) -> dict[str, Any]:
        """The launch as the document holds it."""
        return {"format": FORMAT, "program": self.program, "launches": self.launches}


def capture(command: Sequence[str], folder: Path, *, limit_bytes: int | None = None) -> Capture:
    """Runs the program and makes the folder; raises CaptureError, and makes none, where there is nothing to keep.

    `limit_bytes`: of the arrays' contents, all together; None: none are kept.
    """
    if folder.exists():
        raise CaptureError(f"{folder} is there already; name another folder by --out, or remove it")
    around = folder.absolute().parent
    if not around.is_dir():
        raise CaptureError(f"{folder}: there is no folder {around}")
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".capture-", dir=around)
    except OSError as error:
        raise CaptureError(f"{around} cannot be written: {error.strerror}") from error
    with temporary as made_in:
        made = Path(made_in) / "made"
        made.mkdir()
        launches = _launches(command, made, limit_bytes)
        captured = Capture(folder, list(command), launches)
        for marker in ("started", "launched"):
            (made / marker).unlink()
        (made / DOCUMENT).write_text(json.dumps(captured.document, indent=1), encoding="utf-8")
        made.rename(folder)
    return captured


def _launches(command: Sequence[str], made: Path, limit_bytes: int | None) -> list[dict[str, Any]]:
    """The rows of the program's launches; raises CaptureError."""
    words = shlex.join(command)
    try:
        status = run_watched(command, "TILEWRIGHT_CAPTURE", {"folder": str(made), "limit_bytes": limit_bytes})
    except OSError as error:
        raise CaptureError(f"{command[0]}: {error.strerror}") from error
    if status:
        raise CaptureError(f"`{words}` ended with status {status}: nothing is kept of it", status)
    if (made / "forked").exists():
        fix = "start the processes that launch by `spawn`, or capture the one that launches by itself"
        raise CaptureError(f"`{words}` forks, and launches in the fork, where nothing can be captured: {fix}")
    files = list(made.glob("*.json"))
    if not files:
        raise CaptureError(f"{_nothing(words, made)}: nothing is kept of it", NOTHING_FOUND)
    if len(files) > 1:
        raise CaptureError(f"{len(files)} processes of `{words}` launch: capture one of them by itself")
    document = json.loads(files[0].read_text(encoding="utf-8"))
    if document["refusal"]:
        raise CaptureError(document["refusal"])
    files[0].unlink()
    return _ranked(document["rows"])


def _nothing(words: str, made: Path) -> str:
    """A sentence on why there are no launches."""
    if (made / "launched").exists():
        fix = "let them end by themselves (of a multiprocessing.Pool, call close and join)"
        return f"the processes of `{words}` that launch are killed before they end, and so write nothing: {fix}"
    if (made / "started").exists():
        return f"`{words}` launched nothing through Triton, PyCUDA's SourceModule, CuPy's RawModule or RawKernel"
    return f"`{words}` starts no Python that takes PYTHONPATH (python -I and -E do not)"


def _ranked(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The launches, the longest first, each with a unique name and its share of the total time."""
    total_ms = sum(row["time_ms"] or 0 for row in rows)
    ranked: list[dict[str, Any]] = []
    names: set[str] = set()
    for row in sorted(rows, key=lambda row: -(row["time_ms"] or 0)):
        bare = re.sub(r"\W+", "_", row["name"].partition("<")[0].rpartition("::")[2]).strip("_") or "kernel"
        name, number = bare, 2
        while name in names:
            name, number = f"{bare}_{number}", number + 1
        names.add(name)
        share = row["time_ms"] / total_ms if row["time_ms"] and total_ms else None
        ranked.append({**row, "name": name, "entry": row["name"], "share": share})
    return ranked
