"""The rows of `make bench-service` about jobs: how soon they are queued, begun, and taken up after a kill."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

import httpx
from service_host import READY_S, Host, Program, load, until
from service_rows import PER_SECOND, Row, Served

CALLERS = 8
STARTS = 10
SHORT = {"TILEWRIGHT_HEARTBEAT_S": "0.5", "TILEWRIGHT_STALLED_AFTER_S": "3"}
PARTS = 10
T_95 = 2.306  # Student's t for 95 % and PARTS - 2 degrees of freedom
_numbers = count()


def enqueue(one: Served, seconds: float) -> Row:
    """Jobs accepted a second, from CALLERS at once; nobody works on them."""
    base = f"http://127.0.0.1:{one.api.port}"
    until_s = time.perf_counter() + seconds

    def caller(place: int) -> int:
        accepted = 0
        with httpx.Client(base_url=base, timeout=60) as client:
            while time.perf_counter() < until_s:
                _post(client, one.filled.models[place])
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
    def open(cls, host: Host, name: str, **settings: str) -> Shop:
        """With an empty database of its own; returns when the worker has registered."""
        url, _ = host.database(name, 0)
        api = host.api(url, **settings)
        shop = cls(host, url, api, host.worker(url, **settings), settings)
        until(lambda: api.get("/v1/devices").json()["items"], READY_S)
        return shop

    @property
    def client(self) -> httpx.Client:
        """To its API."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.api.port}", timeout=60)

    @property
    def model(self) -> str:
        """The slug of its worker's device model."""
        return str(self.api.get("/v1/devices").json()["items"][0]["model"])

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as it stands."""
        found: dict[str, Any] = self.api.get(f"/v1/jobs/{job_id}").json()
        return found

    def done(self, job_id: str) -> dict[str, Any]:
        """The job when it has ended."""
        return until(lambda: ((job := self.job(job_id))["state"] in {"done", "failed"} and job) or None, READY_S)

    def close(self) -> None:
        """Ends both."""
        self.worker.end()
        self.api.end()


def enqueue_to_start(host: Host) -> Row:
    """From a job's row to the start of its work, as the database's clock says; one job at a time, an idle worker."""
    shop = Shop.open(host, "starts")
    took_ms = []
    with shop.client as client:
        model = shop.model
        for _ in range(STARTS + 1):
            job = shop.done(_post(client, model))
            begun, made = (datetime.fromisoformat(job[name]) for name in ("started_at", "created_at"))
            took_ms.append(1e3 * (begun - made).total_seconds())
    shop.close()
    took_ms = took_ms[1:]  # the first one builds the kernel's sources
    value = statistics.median(took_ms)
    return {
        "name": "enqueue to start of work",
        "value": round(value, 1),
        "unit": "ms",
        "goal": "<= 200",
        "met": max(took_ms) <= 200,
        "worst_ms": round(max(took_ms), 1),
        "repeats": STARTS,
    }


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


def soak(host: Host, one: Served, seconds: float) -> list[Row]:
    """Memory of an API and a worker over time, with PER_SECOND questions to one and one job after another for both."""
    shop = Shop.open(host, "soak")
    stopping, samples = threading.Event(), list[tuple[float, float, float, float]]()
    began = time.perf_counter()

    def watch() -> None:
        while not stopping.wait(min(2.0, seconds / 100)):
            memory = [program.pss_mb() for program in (one.api, shop.api, shop.worker)]
            samples.append((time.perf_counter() - began, *memory))  # type: ignore[arg-type]

    def work() -> None:
        with shop.client as client:
            while not stopping.is_set():
                shop.done(_post(client, shop.model, trials=5))

    threads = [threading.Thread(target=target) for target in (watch, work)]
    for thread in threads:
        thread.start()
    measured = load(one.job(7, seconds, per_second=PER_SECOND))
    stopping.set()
    for thread in threads:
        thread.join()
    done = len(shop.api.get("/v1/jobs?state=done&limit=200").json()["items"])
    shop.close()
    kept = [sample for sample in samples if sample[0] > 0.2 * seconds]  # the first fifth warms up
    names = (f"API under {PER_SECOND} requests/s", "API under jobs", "worker under jobs")
    about = {"seconds": round(seconds), "requests": measured["answers"], "jobs_at_least": done}
    return [
        {**_slope_row(name, [(sample[0], sample[place + 1]) for sample in kept]), **about}
        for place, name in enumerate(names)
    ]


def _slope_row(name: str, samples: Sequence[tuple[float, float]]) -> Row:
    """Growth in MiB an hour with its 95 % interval: a line through the medians of PARTS equal parts."""
    size = len(samples) // PARTS
    parts = [samples[place * size : (place + 1) * size] for place in range(PARTS)]
    hours = [statistics.median(at for at, _ in part) / 3600 for part in parts]
    memory = [statistics.median(mb for _, mb in part) for part in parts]
    line = statistics.linear_regression(hours, memory)
    left = [mb - line.slope * at - line.intercept for at, mb in zip(hours, memory, strict=True)]
    spread = sum((at - statistics.fmean(hours)) ** 2 for at in hours)
    half = T_95 * (sum(one * one for one in left) / (PARTS - 2) / spread) ** 0.5
    return {
        "name": f"memory over time: {name}",
        "value": round(line.slope, 1),
        "interval": [round(line.slope - half, 1), round(line.slope + half, 1)],
        "unit": "MiB/h",
        "goal": "flat",
        "met": line.slope - half <= 0,
        "first_mib": round(memory[0], 1),
        "last_mib": round(memory[-1], 1),
    }
