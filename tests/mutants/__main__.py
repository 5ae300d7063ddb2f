"""Plants faults in copies of the sources and says what noticed each: `make mutants SEED=1 CHANGES=100`.

PYTHONPATH=tests python -m mutants [--only gemm] [--changes 100] [--seed 1] [--sources | --python] [--page FILE]
    [--record FOLDER] [--log FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from mutants import judged_python, judged_sources
from mutants.coverage_record import recorded
from mutants.table import Row, missed, summary
from tilewright.tuner.devices.cpu.device import cpu_name


def main() -> int:
    """Prints a line for each fault, and the tables; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", action="store_true", help="faults in CUDA sources only")
    parser.add_argument("--python", action="store_true", help="changes of Python modules only")
    parser.add_argument("--only", default="", help="a kernel's name, or how a module's path begins")
    parser.add_argument("--changes", type=int, default=100, help="of Python modules")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="changes of Python that are judged at the same time")
    parser.add_argument("--record", type=Path, help="a folder where the record of which tests run a line is kept")
    parser.add_argument("--seconds", type=float, default=math.inf, help="in which changes of Python are begun")
    parser.add_argument("--log", type=Path, help="a file that gets a line of JSON for each change of Python")
    parser.add_argument("--page", type=Path, help="the page of docs to write")
    arguments = parser.parse_args()
    both = arguments.sources == arguments.python
    sources: list[Row] = []
    python: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        if arguments.sources or both:
            sources += map(_told, judged_sources.judged(Path(folder), arguments.only))
    with tempfile.TemporaryDirectory() as folder:
        if arguments.python or both:
            record = recorded(arguments.record or Path(folder), arguments.workers)
            ways = arguments.changes, arguments.seed, arguments.only, arguments.workers, arguments.seconds
            for row in judged_python.judged(Path(folder), record, judged_python.Judging(*ways)):
                python.append(_told(row))
                if arguments.log:
                    _log(arguments.log, row)
    print("\n".join([*summary(sources), *summary(python)]))
    if arguments.page:
        arguments.page.write_text(page(sources, python, arguments.seed), encoding="utf-8")
    return int(_share(sources) < 0.97 or _share(python) < 0.85)


def page(sources: list[Row], python: list[Row], seed: int) -> str:
    """Both tables, as Markdown."""
    when = f"{datetime.now(UTC):%Y-%m-%d}, CPU device ({cpu_name()}), seed {seed}"
    heads = ["| where | file | fault |", "|---|---|---|"]
    lines = [
        "# Mutants",
        "",
        "`make mutants` plants faults in copies of the sources, one at a time, and says what notices each.",
    ]
    lines += [
        f"The last run: {when}.",
        "",
        "## CUDA sources",
        "",
        "Judged by `verify_configuration` on the CPU device.",
        "",
    ]
    lines += [*summary(sources), "", "Missed:", "", *heads, *missed(sources), "", "## Python", ""]
    lines += [
        (
            "Judged by the tests that run the changed line, those of the module's own folder first, for at most "
            f"{judged_python.MOST_TESTS_S:.0f} s."
        ),
        "",
        *summary(python),
        "",
        "Missed:",
        "",
        *heads,
        *missed(python),
    ]
    return "\n".join(lines) + "\n"


def _told(row: Row) -> Row:
    print(f"{row.group} {row.file}: {row.what}: {row.caught or 'MISSED'}", flush=True)
    return row


def _log(file: Path, row: Row) -> None:
    """Adds the row to `file`, with a count of tests for each of their files."""
    counts = Counter(test.partition("::")[0] for test in row.tests)
    with file.open("a", encoding="utf-8") as log:
        log.write(json.dumps(asdict(row) | {"tests": counts, "seconds": round(row.seconds, 1)}) + "\n")


def _share(rows: list[Row]) -> float:
    return sum(bool(row.caught) for row in rows) / len(rows) if rows else 1.0


if __name__ == "__main__":
    sys.exit(main())
