"""Tunes every shape of suite.json with one budget, times the winners against the library, writes and prints the table.

    python benchmarks/kernels.py [--resume] [--only square-4096 --only gemv --only tf32] [--seconds 8] [--out FILE]
    python benchmarks/kernels.py --eager [--only softmax --only rms_norm+bfloat16] [--seconds 2] [--out FILE]
    python benchmarks/kernels.py --table benchmarks/results/h200/kernels.json [--readme]

Rows are written as they come. `--resume` leaves out those that are there already with the same sources, budget and
environment; `--stop-after` begins no further
row after so many seconds, to be resumed later. `--only` takes the name of a row, of an entry of the suite, of a kernel,
an accuracy or a dtype, and `a+b` for what is both. `--eager`, which needs PyTorch, has normalisations, softmax and
gated pairs beside torch.nn.functional and beside a copy of as many bytes, and writes eager.json.
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
from pathlib import Path
from typing import Any

import bandwidth
from documents.file import now, read, write
from kernel_table.readme import put_sections
from kernel_table.report import report, table
from kernel_table.rows import Row, measure, row_head
from kernel_table.suite import Entry, read_suite

from tilewright.tuner import roofline
from tilewright.tuner.devices.device import Device, DeviceModel
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.tune import Budget

TRIALS, SECONDS = 5000, 8.0
"""The search of every row, whichever comes first. Setting up, the finals and the rounds beside the library come on top:
about 3 s, and 15 s more where a row is timed at sustained clocks."""

LAUNCHES = 3000
"""Where so many launches at the roof of the CUDA cores take longer than the seconds, the search gets that time instead:
a trial of a product of 16 ms costs some twenty launches, and a search of a few dozen trials says little."""

RESULTS = Path(__file__).with_name("results")
PAGES = (Path("README.md"), Path("docs/results.md"))
SAME = ("kernel", "dtype", "options", "shape", "budget", "source_hash", "environment_hash", "device_model")
"""What a row must share with the one that would be measured now, to be kept on --resume."""


def main() -> int:
    """Reads the command line; 1 where a row failed."""
    arguments = parse(sys.argv[1:])
    suite = read_suite()
    names = [entry.row for entry in suite]
    if arguments.table:
        document = read(arguments.table)
        if arguments.readme:
            for page in PAGES:
                put_sections(page, document)
        print(report(document, names))
        return 0
    chosen = select(suite, arguments.only)
    if arguments.eager:
        return beside_eager(chosen, arguments)
    rates = bandwidth.measured()
    print(json.dumps(rates), file=sys.stderr, flush=True)
    device = open_device("cuda:0")
    path = arguments.out or default_path(device.model.slug)
    document = read(path) | facts(device, rates, arguments)
    deadline = time.monotonic() + arguments.stop_after
    for entry in chosen:
        budget = budget_of(entry, device.model, arguments)
        head = row_head(entry, budget, device)
        if arguments.resume and is_fresh(document["rows"], head):
            continue
        if time.monotonic() >= deadline:
            print("stopped by --stop-after; continue with --resume", file=sys.stderr)
            break
        row = measure(device, entry, budget) | {"bandwidth": rates}
        document["rows"] = with_row(document["rows"], row, names)
        write(path, document)
        print(table([row]).splitlines()[-1], f"{row['wall_s']} s", file=sys.stderr, flush=True)
        if "reason" in row:
            # Whatever went wrong, the next shape starts with a new process.
            device.close()
            device = open_device("cuda:0")
    device.close()
    print(report(document, names))
    return int(any("reason" in row for row in document["rows"]))


def beside_eager(chosen: Sequence[Entry], arguments: argparse.Namespace) -> int:
    """Tunes those that PyTorch has functions for; writes and prints each row as it comes; 1 where one is missing."""
    from kernel_table import eager  # noqa: PLC0415 - PyTorch, which nothing else here needs

    device = open_device("cuda:0")
    path = arguments.out or default_path(device.model.slug).with_name("eager.json")
    document = {"rows": []} | facts(device, bandwidth.measured(), arguments)
    entries = [entry for entry in chosen if entry.kernel in eager.KERNELS]
    for row in eager.rows(device, [(entry, budget_of(entry, device.model, arguments)) for entry in entries]):
        document["rows"].append(row)
        write(path, document)
        print(eager.line(row), flush=True)
    device.close()
    return int(len(document["rows"]) < len(entries))


def budget_of(entry: Entry, model: DeviceModel, arguments: argparse.Namespace) -> Budget:
    """The trials and seconds of the command line; more seconds where launches of the shape are long."""
    kernel, problem = entry.declared, entry.problem
    flops = kernel.flops(problem)
    roof = roofline.roof_gflops(model, entry.dtype, flops, kernel.bytes_moved(problem))
    least_s = 0.0 if roof is None else flops / roof / 1e9
    seconds = max(arguments.seconds, arguments.launches * least_s)
    return Budget(trials=arguments.trials, seconds=round(seconds, 1))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="rows with this name; may be repeated")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument(
        "--launches", type=float, default=LAUNCHES, help="launches at the roof that a search has time for"
    )
    parser.add_argument("--eager", action="store_true", help="beside eager PyTorch instead of the library")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/<device>/kernels.json")
    parser.add_argument("--table", type=Path, help="only print what this file holds")
    parser.add_argument("--readme", action="store_true", help="with --table: put its tables into the pages")
    return parser.parse_args(words)


def select(suite: Sequence[Entry], only: Sequence[str]) -> list[Entry]:
    """The rows that these words name; all rows without words. Ends the program on a word that names no row."""
    chosen = {word: [e for e in suite if all(e.answers_to(part) for part in word.split("+"))] for word in only}
    unknown = [word for word, entries in chosen.items() if not entries]
    if unknown:
        sys.exit(f"these are not rows of the suite: {', '.join(unknown)}. Its rows: {', '.join(e.row for e in suite)}")
    return [entry for entry in suite if not only or any(entry in entries for entries in chosen.values())]


def default_path(slug: str) -> Path:
    """A folder a device model."""
    return RESULTS / slug.removeprefix("nvidia-") / "kernels.json"


def facts(device: Device, rates: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts of the whole run."""
    model = asdict(device.model)
    model["limits"]["features"] = sorted(device.model.limits.features)
    return {
        "written_at": now(),
        "command": shlex.join(["python", *sys.argv]),
        "device_model": model,
        "environment": asdict(device.environment) | {"hash": device.environment.hash},
        "bandwidth": rates,
        "budget": {name: getattr(arguments, name) for name in ("trials", "seconds", "launches")},
    }


def is_fresh(rows: Sequence[Row], head: Row) -> bool:
    """Whether the document has this row without a failure, so that --resume can skip it."""
    kept = next((row for row in rows if row["name"] == head["name"]), None)
    return kept is not None and "reason" not in kept and all(kept.get(key) == head[key] for key in SAME)


def with_row(rows: Sequence[Row], row: Row, order: Sequence[str]) -> list[Row]:
    """The rows with this one in its place; rows that the suite has no more are dropped."""
    by_name = {r["name"]: r for r in rows} | {row["name"]: row}
    return [by_name[name] for name in order if name in by_name]


if __name__ == "__main__":
    sys.exit(main())
