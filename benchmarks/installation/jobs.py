"""The rows of `make bench-service` about jobs: how soon they are queued, begun, and taken up after a kill."""

from __future__ import annotations

import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

import httpx
from installation.host import READY_S, Host, Program, until
from installation.rows import Row, Served

CALLERS = 8
STARTS = 10
SHORT = {"TILEWRIGHT_HEARTBEAT_S": "0.5", "TILEWRIGHT_STALLED_AFTER_S": "3"}
_numbers = count()


def enqueue(served: Served, seconds: float) -> Row:
    """Jobs accepted a second, from CALLERS at once; nobody works on them."""
    base = f"http://127.0.0.1:{served.api.port}"
    until_s = time.perf_counter() + seconds

    def caller(place: int) -> int:
        accepted = 0
        with httpx.Client(base_url=base, timeout=60) as client:
            while time.perf_counter() < until_s:
                _post(client, served.filled.models[place])
                accepted += 1
        return accepted

    began = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        accepted = sum(pool.map(caller, range(CALLERS)))
    rate = accepted / (time.perf_counter() - began)
    return {
        "name": "enqueue",
        "value": round(rate, 1),
        "unit": "jobs/s",
        "goal": ">= 150",
        "met": rate >= 150,
        "jobs": accepted,
        "callers": CALLERS,
    }


def _post(client: httpx.Client, model: str, **budget: float) -> str:
    """The id of a new job, unlike any other."""
    body = {
        "kernel": "gemm",
        "shape": {"m": 24, "n": 16, "k": 20},
        "device_model": model,
        "variants": ["naive"],
        "sampler": "random",
        "seed": next(_numbers),
        "budget": budget or {"trials": 1},
    }
    made = client.post("/v1/jobs", json=body).raise_for_status()
    return str(made.json()["id"])


@dataclass
class Shop:
    """An API and a worker of the CPU device, with jobs to do."""

    host: Host
    url: str
    api: Program
    worker: Program
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, host: Host, name: str, rows: int = 0, **settings: str) -> Shop:
        """With a database of its own that holds so many synthetic results; returns when the worker has registered."""
        url, _ = host.database(name, rows)
        api = host.api(url, **settings)
        shop = cls(host, url, api, host.worker(url, **settings), settings)
        until(lambda: shop.served, READY_S)
        return shop

    @property
    def served(self) -> list[dict[str, Any]]:
        """The devices that have a worker."""
        return [one for one in self.api.get("/v1/devices").json()["items"] if one["worker"]]

    @property
    def client(self) -> httpx.Client:
        """To its API."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.api.port}", timeout=60)

    @property
    def model(self) -> str:
        """The slug of its worker's device model."""
        return str(self.served[0]["model"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as it stands."""
        job: dict[str, Any] = self.api.get(f"/v1/jobs/{job_id}").json()
        return job

    def done(self, job_id: str) -> dict[str, Any]:
        """The job when it has ended."""
        return until(lambda: ((job := self.job(job_id))["state"] in {"done", "failed"} and job) or None, READY_S)

    def close(self) -> None:
        """Ends both."""
        self.worker.end()
        self.api.end()


def enqueue_to_start(host: Host) -> Row:
    """From a job's row to its being taken by a worker that waits, by the database's clock; one job after another.

    `first_trial_ms`: until its first trial is stored, which a process of its own has been started for meanwhile.
    """
    shop = Shop.open(host, "starts")
    took_ms, first_ms = [], []
    with shop.client as client:
        model = shop.model
        for _ in range(STARTS + 1):
            job = shop.done(_post(client, model))
            (first,) = client.get(f"/v1/jobs/{job['id']}/trials?limit=1").raise_for_status().json()["items"]
            took_ms.append(_ms_between(job["created_at"], job["started_at"]))
            first_ms.append(_ms_between(job["created_at"], first["created_at"]))
    shop.close()
    took_ms, first_ms = took_ms[1:], first_ms[1:]  # the first one builds the kernel's sources
    value = statistics.median(took_ms)
    return {
        "name": "enqueue to start of work",
        "value": round(value, 1),
        "unit": "ms",
        "goal": "<= 200",
        "met": max(took_ms) <= 200,
        "worst_ms": round(max(took_ms), 1),
        "first_trial_ms": round(statistics.median(first_ms), 1),
        "repeats": STARTS,
    }


def _ms_between(one: str, other: str) -> float:
    return 1e3 * (datetime.fromisoformat(other) - datetime.fromisoformat(one)).total_seconds()


def kill_to_resume(host: Host, name: str, goal_s: float, settings: dict[str, str], repeats: int) -> Row:
    """From kill -9 of a worker in the middle of a job to the job's next trial, by a worker that is started at once."""
    kind = "short" if settings else "default"
    took_s = [_killed(Shop.open(host, f"killed_{kind}_{number}", **settings)) for number in range(repeats)]
    return {
        "name": f"killed worker to resumed job, {name}",
        "value": round(max(took_s), 1),
        "unit": "s (worst)",
        "goal": f"<= {goal_s:.0f}",
        "met": max(took_s) <= goal_s,
        "each_s": [round(one, 1) for one in took_s],
        "settings": settings or "defaults",
    }


def _killed(shop: Shop) -> float:
    """Seconds of one kill; the shop is closed."""
    with shop.client as client:
        job_id = _post(client, shop.model, seconds=600.0)
        until(lambda: shop.job(job_id)["trials_done"] >= 2, READY_S)
        shop.worker.process.send_signal(signal.SIGKILL)
        shop.worker.process.wait()
        began = time.perf_counter()
        before = shop.job(job_id)
        shop.worker = shop.host.worker(shop.url, **shop.settings)
        until(lambda: _goes_on(shop.job(job_id), before), 2 * READY_S)
        took_s = time.perf_counter() - began
        client.post(f"/v1/jobs/{job_id}/cancel")
    shop.close()
    return took_s


def _goes_on(job: dict[str, Any], before: dict[str, Any]) -> bool:
    return bool(job["epoch"] > before["epoch"] and job["trials_done"] > before["trials_done"])
