"""Measures the service on this machine: real processes, PostgreSQL of its own, load from a second process. CPU only.

    python benchmarks/service.py [--only rate --only batch] [--rows 1000000] [--soak-s 120] [--json] [--out FILE]

Parts: rate, cold, latency, memory, replicas, batch, unknown, enqueue, start, killed, soak. Rows are written part by
part; a run with --only replaces its own rows and keeps the others. What answers are about is synthetic
(service_fill.py).
Exit status 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from documents.file import now, read, write
from installation import jobs as service_jobs
from installation import rows as service_rows
from installation import soak as service_soak
from installation import unknown as service_unknown
from installation.host import Host, best_path, host
from installation.rows import Row, Served
from rich.console import Console
from rich.table import Table

from tilewright.tuner.devices.cpu.device import cpu_name

RESULT = Path(__file__).with_name("results") / "service.json"
FEW, MANY = 1000, 1_000_000
ROUNDS, ROUND_S, LATENCY_S, ENQUEUE_S, SOAK_S = 8, 4.0, 20.0, 5.0, 120.0
"""Eight rounds of each side are the fewest but two whose median has a 95 % interval; all parts take some ten minutes,
half of them filling the large database and waiting for the killed worker's silence to count."""

NAMES = ("rate", "cold", "latency", "memory", "replicas", "batch", "unknown", "enqueue", "start", "killed", "soak")
PACKAGES = (
    "fastapi",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "pydantic",
    "psycopg",
    "SQLAlchemy",
    "procrastinate",
)


class Parts:
    """Everything that can be measured, each part by name; what several need is made once."""

    def __init__(self, at: Host, arguments: argparse.Namespace) -> None:
        self._host, self._arguments = at, arguments
        self.few = cache(lambda: service_rows.serve(at, "few", FEW))
        self.many = cache(lambda: service_rows.serve(at, "many", arguments.rows))

    def all(self) -> dict[str, Callable[[], list[Row]]]:
        """What each of NAMES measures."""
        return {
            "rate": self._rate,
            "cold": lambda: service_rows.cold(self._host, self.many(), self._arguments.latency_s),
            "latency": lambda: [service_rows.latency(one, self._arguments.latency_s) for one in self._both()],
            "memory": lambda: service_rows.memory(self._both()),
            "replicas": lambda: [service_rows.replicas(self._host, self.many())],
            "batch": lambda: [service_rows.batch(self.many())],
            "unknown": lambda: service_unknown.unknown(self._host),
            "enqueue": lambda: [service_jobs.enqueue(self.few(), ENQUEUE_S)],
            "start": lambda: [service_jobs.enqueue_to_start(self._host)],
            "killed": self._killed,
            "soak": lambda: service_soak.soak(self._host, self.few(), self._arguments.soak_s),
        }

    def _both(self) -> list[Served]:
        return [self.few(), self.many()]

    def _rate(self) -> list[Row]:
        few = self.few()
        body = few.api.get(best_path(few.filled.models[0], few.filled.shapes[0])).content
        constant = self._host.constant(body)
        rows = service_rows.rates(constant, self._both(), self._arguments.rounds, self._arguments.round_s)
        constant.end()
        return rows

    def _killed(self) -> list[Row]:
        kill = service_jobs.kill_to_resume
        return [
            kill(self._host, "short settings", 10, service_jobs.SHORT, 3),
            kill(self._host, "default settings", 90, {}, 1),
        ]


def main() -> int:
    """Reads the command line, measures, writes, prints; 1 where a goal is missed."""
    arguments = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends with this
    before, document = os.getloadavg(), read(arguments.out)
    with host() as at:
        parts = Parts(at, arguments).all()
        for name in arguments.only or NAMES:
            print(f"{now()} {name}", file=sys.stderr, flush=True)
            document = with_parts(document, {name: [row | {"part": name} for row in parts[name]()]}) | facts(before)
            write(arguments.out, document)
    print(json.dumps(document, indent=1) if arguments.json else "", end="")
    if not arguments.json:
        show(document["rows"])
    return int(any(row["met"] is False for row in document["rows"]))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=NAMES, help="may be repeated")
    parser.add_argument("--rows", type=int, default=MANY, help="of the large database; a multiple of 50")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--round-s", type=float, default=ROUND_S)
    parser.add_argument("--latency-s", type=float, default=LATENCY_S)
    parser.add_argument("--soak-s", type=float, default=SOAK_S, help="3600 for the hour of the goals table")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--json", action="store_true", help="print the document instead of the table")
    return parser.parse_args(words)


def facts(before: Sequence[float]) -> dict[str, Any]:
    """The facts of the whole run."""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": now(),
        "data": "synthetic best configurations in a temporary database",
        "environment": {
            "measured_on": "CPU",
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "packages": {name: version(name) for name in PACKAGES},
            "load_average_before": [round(one, 2) for one in before],
            "load_average_after": [round(one, 2) for one in os.getloadavg()],
        },
    }


def with_parts(document: dict[str, Any], measured: dict[str, list[Row]]) -> dict[str, Any]:
    """The document with these parts in place of the old ones; each row says when it was measured."""
    kept = [row for row in document["rows"] if row["part"] not in measured]
    when = {"measured_at": now(), "load_average": [round(one, 2) for one in os.getloadavg()]}
    new = [row | when for rows in measured.values() for row in rows]
    return document | {"rows": sorted([*kept, *new], key=lambda row: NAMES.index(row["part"]))}


def show(rows: Sequence[Row]) -> None:
    """The table."""
    table = Table("what", "measured", "unit", "goal", "met", box=None)
    for row in rows:
        interval = " ({} to {})".format(*row["interval"]) if "interval" in row else ""
        met = {True: "yes", False: "NO", None: ""}[row["met"]]
        table.add_row(row["name"], f"{row['value']:,}{interval}", row["unit"], row["goal"] or "", met)
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
