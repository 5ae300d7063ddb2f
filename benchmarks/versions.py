"""Compares the rate of warm `best` of several checkouts in one run, each with a database of its own. CPU only.

    python benchmarks/versions.py FOLDER... [--rounds 5] [--seconds 4] [--out FILE]

The first folder is the new version: its rate is divided by that of each other one in the same round. In each folder
`benchmarks/installation` and the package of that version are used, with this Python's packages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from documents.file import now, write
from installation.host import cpu_s, load
from installation.rows import CONNECTIONS

from tilewright.tuner.devices.cpu.device import cpu_name

ROWS = 1000
WARM_S = 60.0
SERVE = f"""
import json, sys
sys.path.insert(0, "benchmarks")
from installation.host import best_path, host, until
with host() as at:
    url, filled = at.database("compared", {ROWS})
    api, models = at.api(url), filled.models[:4]
    for model in models:
        until(lambda: api.get(best_path(model, filled.shapes[0])).json().get("match") == "exact", {WARM_S})
    job = {{"port": api.port, "pid": api.process.pid, "models": models, "shapes": filled.shapes}}
    print(json.dumps(job), flush=True)
    sys.stdin.read()
"""
"""A program in a checkout: serves that version until its standard input ends."""


def served(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """The load for the version in a folder, which is served until the stack ends."""
    words = [sys.executable, "-c", SERVE]
    program = subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(program.communicate)
    return json.loads(program.stdout.readline()) | {"kernel": "gemm", "unknown_share": 0, "connections": CONNECTIONS}


def compare(jobs: list[dict[str, Any]], rounds: int, seconds: float) -> list[list[tuple[float, float]]]:
    """Of each version and round the requests a second and the CPU time of one; each round reverses the order."""
    for job in jobs:
        load(job | {"seconds": seconds / 2})
    found: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for number in range(rounds):
        order = list(zip(jobs, found, strict=True))
        for job, rates in order if number % 2 else reversed(order):
            before_s = cpu_s(job["pid"])
            measured = load(job | {"seconds": seconds, "seed": number})
            cpu_us = 1e6 * (cpu_s(job["pid"]) - before_s) / measured["answers"]
            rates.append((round(measured["per_second"], 1), round(cpu_us, 1)))
    return found


def row(folder: Path, measured: list[tuple[float, float]], new: list[tuple[float, float]]) -> dict[str, Any]:
    """A version's figures, and what the new one has of its rate, and of its requests in the same CPU time.

    The second ratio counts where other programs use the machine too.
    """
    rounds = list(zip(new, measured, strict=True))
    ratios = {
        "ratio": [ours[0] / its[0] for ours, its in rounds],
        "cpu_ratio": [its[1] / ours[1] for ours, its in rounds],
    }
    figures = {"per_second": [rate for rate, _ in measured], "cpu_us": [cpu_us for _, cpu_us in measured]}
    medians = {name: round(statistics.median(values), 3) for name, values in ratios.items()}
    return {"version": folder.resolve().name} | figures | medians


def main() -> None:
    """Reads the command line, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    before = os.getloadavg()
    with ExitStack() as stack:
        found = compare([served(one, stack) for one in arguments.folders], arguments.rounds, arguments.seconds)
    rows = [row(*one, found[0]) for one in zip(arguments.folders, found, strict=True)]
    for one in rows:
        print(json.dumps(one))
    if arguments.out:
        load_average = {"before": before, "after": os.getloadavg()}
        write(arguments.out, {"date": now(), "cpu": cpu_name(), "load_average": load_average, "rows": rows})


if __name__ == "__main__":
    main()
