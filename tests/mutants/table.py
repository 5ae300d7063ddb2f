"""The table of faults and of what noticed them, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A fault in `file`, and what `caught` it; `group`: a kernel's variant, or a package.

    A change of Python has the tests that were to judge it, and how long they ran.
    """

    group: str
    file: str
    what: str
    caught: str
    tests: tuple[str, ...] = ()
    seconds: float = 0.0


def summary(rows: Sequence[Row]) -> list[str]:
    """Counts by group, as a Markdown table."""
    planted, caught = Counter(row.group for row in rows), Counter(row.group for row in rows if row.caught)
    lines = ["| where | planted | caught |", "|---|---|---|"]
    lines += [f"| {group} | {count} | {caught[group]} |" for group, count in planted.items()]
    total = len(rows)
    return [*lines, f"| **all** | **{total}** | **{caught.total()}** ({caught.total() / max(1, total):.0%}) |"]


def missed(rows: Sequence[Row]) -> list[str]:
    """A line for each fault that nothing noticed."""
    return [f"| {row.group} | `{row.file}` | {_plain(row.what)} |" for row in rows if not row.caught]


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
