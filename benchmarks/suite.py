"""The shapes of suite.json: what make bench-kernels tunes, whatever the kernels become."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem

SUITE = Path(__file__).with_name("suite.json")


@dataclass(frozen=True)
class Entry:
    """One shape with its options, its name and where it comes from."""

    name: str
    kernel: str
    shape: dict[str, int]
    options: dict[str, OptionValue]
    origin: str

    @property
    def declared(self) -> Kernel:
        """The kernel's declaration."""
        return catalogue().get(self.kernel)

    def problem(self, dtype: str) -> Problem:
        """The problem to tune; raises InvalidProblemError."""
        return self.declared.problem(self.shape, dtype, self.options)


def read_suite(path: Path = SUITE) -> list[Entry]:
    """Every entry, in the order of the table."""
    return [Entry(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["entries"]]


def source_hash(kernel: Kernel) -> str:
    """SHA-256 over the files that decide what can be tuned: the kernel's folder and the headers beside it."""
    files = [path for path in sorted(kernel.folder.iterdir()) if path.suffix in {".cu", ".cuh", ".py"}]
    digest = hashlib.sha256()
    for path in [*files, *sorted(kernel.folder.parent.glob("*.cuh"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
