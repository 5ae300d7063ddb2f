"""The JSON files that benchmarks write, shapes as their command lines name them, and interleaved rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem

WIDTH = 190
"""Characters of a line."""


def write(path: Path, document: Mapping[str, Any]) -> None:
    """The file appears when it is whole, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(as_text(document) + "\n", encoding="utf-8")
    partial.replace(path)


def as_text(value: Any, depth: int = 0, before: int = 0) -> str:
    """JSON in which what fits into a line has one; `before` characters stand in the line already."""
    short = json.dumps(value, allow_nan=False)
    if not isinstance(value, Mapping | list) or depth + before + len(short) <= WIDTH:
        return short
    names = [f"{json.dumps(name)}: " for name in value] if isinstance(value, Mapping) else [""] * len(value)
    parts = value.values() if isinstance(value, Mapping) else value
    inner = [" " * (depth + 1) + n + as_text(p, depth + 1, len(n)) for n, p in zip(names, parts, strict=True)]
    begin, end = "{}" if isinstance(value, Mapping) else "[]"
    return begin + "\n" + ",\n".join(inner) + "\n" + " " * depth + end


def read(path: Path) -> dict[str, Any]:
    """The document of the file; without rows where the file does not exist."""
    if not path.exists():
        return {"rows": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def put_into(page: Path, name: str, text: str) -> None:
    """Replaces what stands between `<!-- NAME: … -->` and `<!-- /NAME -->`; raises ValueError where they are not."""
    before, marker, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name}:")
    comment, end, old = rest.partition("-->\n")
    page.write_text(before + marker + comment + end + text + old[old.index(f"<!-- /{name} -->") :], encoding="utf-8")


def now() -> str:
    """The time as documents have it: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def problem_of(kernel: Kernel, sizes: str) -> Problem:
    """The kernel's problem for `4096x4096x512`: sizes in the order of its axes."""
    return kernel.problem(dict(zip(kernel.axes, map(int, sizes.split("x")), strict=True)))


T = TypeVar("T")
Sample = TypeVar("Sample")


def in_turns(
    contestants: Mapping[str, T], count: int, sample: Callable[[T], Sample], warm_up: int = 1
) -> dict[str, list[Sample]]:
    """A sample a round of each contestant; each round begins with another one, and the first rounds are left out."""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(warm_up + count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(sample(contestants[name]))
    return {name: one[warm_up:] for name, one in samples.items()}
