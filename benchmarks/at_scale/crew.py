"""What a run at scale asks of the service: jobs through its API, and simulated workers in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg

PER_PROCESS = 20
READY = "SELECT count(*) FROM devices WHERE worker_started_at >= %s AND heartbeat_at > worker_started_at"

Row = dict[str, Any]


@dataclass
class Requested:
    """Jobs that were requested: how long the API took, and what it said."""

    took_ms: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)

    def post(self, client: httpx.Client, shape: Mapping[str, int], model: str, trials: int) -> None:
        """One job."""
        body = {"kernel": "gemm", "shape": shape, "device_model": model, "budget": {"trials": trials}}
        began = time.perf_counter()
        try:
            said = str(client.post("/v1/jobs", json=body).status_code)
        except httpx.HTTPError as error:
            said = type(error).__name__
        self.took_ms.append(1e3 * (time.perf_counter() - began))
        self.statuses[said] = self.statuses.get(said, 0) + 1

    def told(self) -> Row:
        """What came of them."""
        return {"statuses": self.statuses, **percentiles(self.took_ms)}


class Crew:
    """The simulated workers, in processes of PER_PROCESS."""

    def __init__(self, url: str, arguments: Namespace) -> None:
        firsts = range(1, arguments.workers + 1, PER_PROCESS)
        counts = {first: min(PER_PROCESS, arguments.workers + 1 - first) for first in firsts}
        common = {"url": url, "held": arguments.held, "trial_s": arguments.trial_s}
        self._url, self._count = url, arguments.workers
        self._requests = [common | {"first": first, "count": count} for first, count in counts.items()]
        self._processes: list[subprocess.Popen[str]] = []
        self._began = datetime.now(UTC)

    def start(self) -> None:
        """All of them."""
        for request in self._requests:
            words = (sys.executable, "-m", "at_scale.workers")
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self._processes.append(process)
            process.stdin.write(f"{json.dumps(request)}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

    def are_ready(self) -> bool:
        """Whether all have registered, and their engines too."""
        with psycopg.connect(self._url) as connection:
            (ready,) = connection.execute(READY, (self._began,)).fetchone() or (0,)
        return bool(ready == self._count)

    def ended(self) -> Row:
        """What they measured, when all have ended."""
        took_ms: dict[str, list[float]] = {}
        failed: list[str] = []
        cpu = 0.0
        for process in self._processes:
            process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            said = process.stdout.read()  # type: ignore[union-attr]
            told = json.loads(said or '{"took_ms": {}, "failed": ["no answer"], "cpu_s": 0}')
            process.wait()
            cpu += told["cpu_s"]
            failed += told["failed"]
            for name, each in told["took_ms"].items():
                took_ms.setdefault(name, []).extend(each)
        return {
            "transactions": {name: percentiles(each) for name, each in took_ms.items()},
            "failed": {"count": len(failed), "first": failed[:3]},
            "cpu_s": round(cpu),
        }


def percentiles(took_ms: Sequence[float]) -> Row:
    """How many, and some of them in order."""
    ordered = sorted(took_ms) or [0.0]
    at = {f"p{part:g}_ms": ordered[min(len(ordered) - 1, int(part / 100 * len(ordered)))] for part in (50, 99)}
    return {"count": len(took_ms), **{name: round(ms, 1) for name, ms in at.items()}, "worst_ms": round(ordered[-1], 1)}
