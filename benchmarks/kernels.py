"""Tunes every shape of suite.json with one budget, times the winners against the library, writes and prints the table.

    python benchmarks/kernels.py [--resume] [--only square-4096 --only gemv] [--dtype float64] [--out FILE]
    python benchmarks/kernels.py --table benchmarks/results/h200/kernels.json

Rows are written as they come. `--resume` leaves out those that are there already with the same sources, budget and
environment; `--stop-after` begins no further row after so many seconds, to be resumed later.
Exit status 1 when a row failed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bandwidth
from kernel_report import report, table
from kernel_rows import Row, measure, row_head
from suite import Entry, read_suite

from tilewright.tuner.device import Device
from tilewright.tuner.devices import open_device
from tilewright.tuner.tune import Budget

TRIALS, SECONDS = 300, 15.0
"""The budget of every shape, whichever comes first; setting up and the finals come on top."""

RESULTS = Path(__file__).with_name("results")
SAME = ("kernel", "dtype", "options", "shape", "budget", "source_hash", "environment_hash", "device_model")
"""What a row must share with the one that would be measured now, to be kept on --resume."""


def main() -> int:
    """Reads the command line; 1 where a row failed."""
    arguments = parse(sys.argv[1:])
    suite = read_suite()
    if arguments.table:
        print(report(read_document(arguments.table), [entry.name for entry in suite]))
        return 0
    chosen = select(suite, arguments.only)
    budget = Budget(trials=arguments.trials, seconds=arguments.seconds)
    rates = bandwidth.measured()
    print(json.dumps(rates), file=sys.stderr, flush=True)
    device = open_device("cuda:0")
    path = arguments.out or default_path(device.model.slug, arguments.dtype)
    document = read_document(path) | facts(device, rates, budget)
    deadline = time.monotonic() + arguments.stop_after
    for entry in chosen:
        head = row_head(entry, arguments.dtype, budget, device)
        if arguments.resume and is_fresh(document["rows"], head):
            continue
        if time.monotonic() >= deadline:
            print("stopped by --stop-after; go on with --resume", file=sys.stderr)
            break
        row = measure(device, entry, arguments.dtype, budget) | {"bandwidth": rates}
        document["rows"] = with_row(document["rows"], row, [e.name for e in suite])
        write_document(path, document)
        print(table([row]).splitlines()[-1], f"{row['wall_s']} s", file=sys.stderr, flush=True)
        if "reason" in row:
            # Whatever went wrong, the next shape starts with a new process.
            device.close()
            device = open_device("cuda:0")
    device.close()
    print(report(document, [entry.name for entry in suite]))
    return int(any("reason" in row for row in document["rows"]))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="an entry's name, or a kernel's; may be repeated")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/<device>/kernels.json")
    parser.add_argument("--table", type=Path, help="only print what this file holds")
    return parser.parse_args(words)


def select(suite: Sequence[Entry], only: Sequence[str]) -> list[Entry]:
    """The entries with these names, or of these kernels; all where none is named. Ends the program on a wrong one."""
    unknown = [word for word in only if not any(word in {entry.name, entry.kernel} for entry in suite)]
    if unknown:
        sys.exit(f"no entry or kernel of the suite: {', '.join(unknown)}; there is {', '.join(e.name for e in suite)}")
    return [entry for entry in suite if not only or entry.name in only or entry.kernel in only]


def default_path(slug: str, dtype: str) -> Path:
    """A folder a device model, a file a dtype."""
    suffix = "" if dtype == "float32" else f"-{dtype}"
    return RESULTS / slug.removeprefix("nvidia-") / f"kernels{suffix}.json"


def read_document(path: Path) -> dict[str, Any]:
    """What the file holds; no rows where it is not there."""
    if not path.exists():
        return {"rows": []}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def facts(device: Device, rates: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """What holds for the run as a whole."""
    model = asdict(device.model)
    model["limits"]["features"] = sorted(device.model.limits.features)
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "device_model": model,
        "environment": asdict(device.environment) | {"hash": device.environment.hash},
        "bandwidth": rates,
        "budget": {"trials": budget.trials, "seconds": budget.seconds},
    }


def is_fresh(rows: Sequence[Row], head: Row) -> bool:
    """Whether there is a row without a failure that a new measurement would only repeat."""
    kept = next((row for row in rows if row["name"] == head["name"]), None)
    return kept is not None and "reason" not in kept and all(kept.get(key) == head[key] for key in SAME)


def with_row(rows: Sequence[Row], row: Row, order: Sequence[str]) -> list[Row]:
    """The rows with this one in its place; rows that the suite has no more are dropped."""
    by_name = {r["name"]: r for r in rows} | {row["name"]: row}
    return [by_name[name] for name in order if name in by_name]


def write_document(path: Path, document: dict[str, Any]) -> None:
    """The file appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
