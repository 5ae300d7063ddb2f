"""A compiler that puts a witness into every kernel's program, and what the witness saw."""

from __future__ import annotations

import contextlib
import fcntl
import shlex
from dataclasses import dataclass
from pathlib import Path

from tilewright.tuner.devices.cpu.compile import find_compiler

# The last -O counts: how fast the kernels are is of no interest here. The pause makes jobs last without using the CPU,
# so that faults meet them in the middle.
SCRIPT = """#!/bin/sh
for word in "$@"; do
  case "$word" in
    */kernel.cpp) sleep 0.3; exec {compiler} -include {header} "$@" -O0;;
  esac
done
exec {compiler} "$@"
"""


@dataclass(frozen=True)
class Witness:
    """What workers start with so that their evaluations are witnessed, and the record."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> Witness:
        (folder / "seen").mkdir(parents=True)
        script = folder / "c++"
        header = Path(__file__).with_name("witness.h")
        script.write_text(SCRIPT.format(compiler=shlex.join(find_compiler().command), header=shlex.quote(str(header))))
        script.chmod(0o755)
        return cls(folder)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CXX": str(self.folder / "c++"),
            "CHAOS_WITNESS": str(self.folder / "seen"),
            "TILEWRIGHT_SANDBOX": "off",  # the witness writes files beside the kernel's
            "TILEWRIGHT_CACHE_DIR": str(self.folder / "cache"),
            "OPENBLAS_NUM_THREADS": "1",  # as `tilewright worker` sets it
        }

    def violations(self) -> list[str]:
        """Each time that two runners evaluated on one device at once."""
        return self._lines("violations")

    def begun(self) -> list[tuple[str, int]]:
        """Device and runner of every evaluation that was witnessed."""
        pairs = (line.split() for line in self._lines("begun"))
        return [(device, int(evaluation.partition(".")[0])) for device, evaluation in pairs]

    def sweep(self) -> None:
        """Removes the files of evaluations that have ended."""
        for path in self.folder.glob("seen/*/*"):
            with path.open("r+") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def _lines(self, name: str) -> list[str]:
        path = self.folder / "seen" / name
        return path.read_text().splitlines() if path.exists() else []
