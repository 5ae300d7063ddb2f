"""The rows of suite.json: what make bench-kernels tunes, whatever the kernels become."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem

SUITE = Path(__file__).parents[1] / "suite.json"
CUDA_CORES = {"float32": "fp32-fma", "float64": "fp64"}
"""What results are held to of kernels that have no choice, by dtype; in FP64 tensor cores compute as CUDA cores do. Of
other dtypes it is what they are called."""


@dataclass(frozen=True)
class Entry:
    """One shape in one arithmetic, its name and where it comes from. `sustained`: also timed in rounds of a second."""

    name: str
    kernel: str
    shape: Mapping[str, int]
    options: Mapping[str, OptionValue]
    origin: str
    dtype: str = "float32"
    chosen: str | None = None  # the option `accuracy`, where the kernel has it
    sustained: bool = False

    @property
    def declared(self) -> Kernel:
        """The kernel's declaration."""
        return catalogue().get(self.kernel)

    @cached_property
    def problem(self) -> Problem:
        """The problem to tune; raises InvalidProblemError."""
        chosen = {} if self.chosen is None else {"accuracy": self.chosen}
        return self.declared.problem(self.shape, self.dtype, dict(self.options) | chosen)

    @property
    def accuracy(self) -> str:
        """What its results are held to, or how they are computed where nobody chooses."""
        return self.chosen or CUDA_CORES.get(self.dtype, self.dtype)

    @property
    def row(self) -> str:
        """The name of its row: the entry's, and what tells its rows apart."""
        return "/".join([self.name, *([self.chosen] if self.chosen else []), *_unusual(self.dtype)])

    def answers_to(self, word: str) -> bool:
        """Whether the word names it: its row, its entry, its kernel, its accuracy or its dtype."""
        return word in {self.row, self.name, self.kernel, self.accuracy, self.dtype}


def read_suite(path: Path = SUITE) -> list[Entry]:
    """Every row there is to measure, in the order of the table."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [entry for row in document["rows"] for entry in _entries(document, row)]


def _entries(document: dict[str, Any], row: dict[str, Any]) -> Iterator[Entry]:
    dtype, chosen, heated = row.get("dtype", "float32"), row.get("accuracy"), document["sustained"]
    word = chosen or dtype
    for entry in document["entries"]:
        facts = {name: value for name, value in entry.items() if name != "accuracies"}
        is_asked = word in entry.get("accuracies", [word]) and entry["name"] in row.get("entries", [entry["name"]])
        if entry["kernel"] == row["kernel"] and is_asked:
            sustained = entry["name"] in heated["entries"] and word in heated["accuracies"]
            yield Entry(**facts, dtype=dtype, chosen=chosen, sustained=sustained)


def _unusual(dtype: str) -> list[str]:
    return [] if dtype == "float32" else [dtype]


def source_hash(kernel: Kernel) -> str:
    """SHA-256 over what decides what can be tuned: the kernel's declaration, and its variants with their headers."""
    digest = hashlib.sha256()
    for path in sorted(kernel.folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for variant, source in sorted(kernel.source_hashes.items()):
        digest.update(f"{variant} {source}\0".encode())
    return digest.hexdigest()
