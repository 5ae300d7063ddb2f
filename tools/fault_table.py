"""Prints the fault table of docs/faults.md from measured times; with --write puts it there.

Made by: TILEWRIGHT_FAULT_TIMES=times.jsonl pytest tests/faults -m "faults or not faults"
Rows of faults that were not measured this time stay as they are; with --afresh they go.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
BEGIN, END = "<!-- times: begin -->\n", "<!-- times: end -->\n"


USUAL = "heartbeat 0.3 s, stalled 1.5 s, grace 15 s"
"""Settings that the page states once."""

HEAD = "| fault | what happens | measured until | seconds | settings |\n|---|---|---|---|---|\n"


def table(lines: list[str], before: str = "") -> str:
    """One row a fault, of several measurements the median, and the least and most; else the row of the table before."""
    faults: dict[str, list[dict[str, str | float]]] = {}
    for line in lines:
        entry = json.loads(line)
        faults.setdefault(entry["fault"], []).append(entry)
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in before.removeprefix(HEAD).splitlines()}
    for fault, entries in faults.items():
        seconds = sorted(float(entry["seconds"]) for entry in entries)
        shown = f"{statistics.median(seconds):.1f}"
        if len(seconds) > 1:
            shown += f" ({seconds[0]:.1f} to {seconds[-1]:.1f}, n = {len(seconds)})"
        last = entries[-1]
        rows[fault] = (
            f"| {fault} | {last['happens']} | {last['until']} | {shown} | {last['settings'].replace(USUAL, '')} |"
        )
    return HEAD + "".join(f"{row}\n" for _, row in sorted(rows.items()))


def main(arguments: list[str]) -> int:
    """Prints the table, or writes it between the marks of the page."""
    path, *flags = arguments
    above, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    before, _, below = rest.partition(END)
    made = table(Path(path).read_text(encoding="utf-8").splitlines(), "" if "--afresh" in flags else before)
    if "--write" not in flags:
        print(made, end="")
        return 0
    PAGE.write_text(above + BEGIN + made + END + below, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
