"""A fleet on one host with two GPUs, as its users see it: jobs side by side, refusals and resumed jobs.

    python benchmarks/two_gpus.py --out benchmarks/results/h200/two_gpus.json

It starts an API and a worker for every GPU with a database of its own, in a temporary folder, and stops them again.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from documents.file import now, write
from installation.gpus import READY_S, Host, Receiver, running, wait_for

from tilewright.service.client import Client
from tilewright.service.operations.answers import DeviceAnswer, JobAnswer
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store.embedded import EmbeddedPostgres

JOB_S = 90.0


@dataclass(frozen=True)
class Problem:
    """One kernel at one shape, with the trials of its job."""

    kernel: str
    shape: dict[str, int]
    trials: int

    def request(self, **more: Any) -> JobRequest:
        """A job for it."""
        return JobRequest(kernel=self.kernel, shape=self.shape, budget=BudgetRequest(trials=self.trials), **more)


@dataclass(frozen=True)
class Problems:
    """What is tuned: side by side, on one device and on both (equal work), and under a worker that is killed."""

    side_by_side: tuple[Problem, Problem]
    alone: Problem
    shared: Problem
    killed: Problem


ON_GPUS = Problems(
    (Problem("gemm", {"m": 1024, "n": 1024, "k": 1024}, 120), Problem("gemv", {"m": 4096, "n": 8192}, 120)),
    # Large: here measuring takes longer than compiling, for which both devices share the host's cores.
    Problem("gemm", {"m": 4096, "n": 4096, "k": 4032}, 300),
    Problem("gemm", {"m": 4096, "n": 4032, "k": 4096}, 150),
    Problem("gemm", {"m": 1536, "n": 1536, "k": 1536}, 120),
)


class Checks:
    """The checks, one after the other; each fills its part of the report."""

    def __init__(self, host: Host, client: Client, devices: list[DeviceAnswer]) -> None:
        self.host, self.client, self.problems, self.devices = host, client, ON_GPUS, devices
        self.ended: list[JobAnswer] = []

    def side_by_side(self) -> dict[str, Any]:
        """Two jobs at once, and second workers for the first device meanwhile."""
        first, second = self.problems.side_by_side
        jobs = [
            self._ask(problem, device=device.uuid)
            for problem, device in zip((first, second), self.devices, strict=True)
        ]
        refused = self._second_workers()
        one, two = (self._end(job) for job in jobs)
        begin, end = max(one.started_at, two.started_at), min(one.finished_at, two.finished_at)  # type: ignore[type-var]
        return {
            "jobs": [{"kernel": j.problem.kernel, **_times(j), "trials": j.trials_done} for j in (one, two)],
            "overlap_s": round((end - begin).total_seconds(), 2),  # type: ignore[operator]
            "second_worker": refused,
        }

    def one_study_on_both(self) -> dict[str, Any]:
        """Equal numbers of trials: by one device, and by two in one study."""
        alone = self._end(self._ask(self.problems.alone, device=self.devices[0].uuid))
        shared = [
            self._ask(self.problems.shared, device=device.uuid, seed=seed) for seed, device in enumerate(self.devices)
        ]
        ended = [self._end(job) for job in shared]
        begin, end = min(j.started_at for j in ended), max(j.finished_at for j in ended)  # type: ignore[type-var]
        trials = [trial for job in ended for trial in self._trials(job)]
        numbers = sorted(trial["number"] for trial in trials)
        alone_search_s, both_search_s = _search_s(self._trials(alone)), _search_s(trials)
        alone_s, both_s = _times(alone)["took_s"], round((end - begin).total_seconds(), 2)  # type: ignore[operator]
        return {
            "one_device": {
                "trials": alone.trials_done,
                "took_s": alone_s,
                "search_s": alone_search_s,
                "best_ms": alone.best_ms,
            },
            "both_devices": {
                "trials": len(trials),
                "took_s": both_s,
                "search_s": both_search_s,
                "best_ms": min(j.best_ms for j in ended if j.best_ms is not None),
                "trials_of_each": [sum(t["job_id"] == str(j.id) for t in trials) for j in ended],
                "jobs": [
                    _times(j) | {"last_trial": _last(trials, j), "epoch": j.epoch, "result": j.result} for j in ended
                ],
            },
            "studies": len({trial["study_id"] for trial in trials}),
            "numbers_without_gap_or_repetition": numbers == list(range(len(numbers))),
            "configurations_repeated": len(trials)
            - len({json.dumps([t["variant"], t["configuration"]], sort_keys=True) for t in trials}),
            "speedup": round(alone_s / both_s, 2),
            "speedup_of_search": round(alone_search_s / both_search_s, 2),
        }

    def killed_worker(self) -> dict[str, Any]:
        """A worker killed in mid-job: who goes on, and after how long."""
        job = self._ask(self.problems.killed, device=self.devices[0].uuid)
        wait_for(lambda: self.client.job(job.id).trials_done >= self.problems.killed.trials // 4, JOB_S)
        worker = self.client.job(job.id).worker or ""
        os.kill(int(worker.split(":")[1]), signal.SIGKILL)
        struck = datetime.now(UTC)
        before = self.client.job(job.id).trials_done
        ended = self._end(job)
        trials = self._trials(ended)
        after = min(datetime.fromisoformat(t["created_at"]) for t in trials if t["number"] >= before)
        return {
            "state": ended.state,
            "trials_when_killed": before,
            "resumed_after_s": round((after - struck).total_seconds(), 2),
            "trials": len(trials),
            "epochs": ended.epoch,
            "numbers_without_gap_or_repetition": sorted(t["number"] for t in trials) == list(range(len(trials))),
            "other_worker": ended.worker != worker,
        }

    def webhook(self, receiver: Receiver) -> dict[str, Any]:
        """Each job that ended, told once and signed."""
        expected = {str(job.id) for job in self.ended}
        with suppress(TimeoutError):
            wait_for(lambda: {message["job"] for message in receiver.messages} >= expected, 10)
        delivered = [message for message in receiver.messages if message["job"] in expected]
        return {
            "jobs_ended": len(expected),
            "messages": len(delivered),
            "jobs_told_of": len({message["job"] for message in delivered}),
            "signatures_right": sum(message["signature_is_right"] for message in delivered),
        }

    def _second_workers(self) -> list[dict[str, Any]]:
        """The messages to a second worker for the first device, of this installation and of others beside it."""
        beside, apart = self.host.folder / "beside", self.host.folder / "apart"
        shared = {"TILEWRIGHT_DATA_DIR": str(beside), "TILEWRIGHT_DATABASE_URL": self.host.server.ensure()}
        cases = {"same installation": {}, "another one, same database": shared}
        cases["another one, own database"] = {"TILEWRIGHT_DATA_DIR": str(apart)}
        try:
            with ThreadPoolExecutor() as threads:
                ends = list(
                    threads.map(lambda more: self.host.said("worker", "--device", "cuda:0", **more), cases.values())
                )
        finally:
            EmbeddedPostgres(apart / "postgres").stop()
        return [
            {"where": where, "exit": status, "said": said} for where, (status, said) in zip(cases, ends, strict=True)
        ]

    def _ask(self, problem: Problem, **more: Any) -> JobAnswer:
        return self.client.request_job(problem.request(**more))[0]

    def _end(self, job: JobAnswer) -> JobAnswer:
        wait_for(lambda: self.client.job(job.id).finished_at is not None, JOB_S)
        ended = self.client.job(job.id)
        if ended.state != "done":
            raise RuntimeError(f"job {job.id} ended {ended.state}: {ended.error}")
        self.ended.append(ended)
        return ended

    def _trials(self, job: JobAnswer) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = self.client.trials(job.id, limit=100, cursor=cursor)
            trials += [trial.model_dump(mode="json") for trial in page.items]
            if (cursor := page.next_cursor) is None:
                return trials


def _times(job: JobAnswer) -> dict[str, Any]:
    assert job.started_at is not None  # noqa: S101 - it ended
    assert job.finished_at is not None  # noqa: S101
    took_s = (job.finished_at - job.started_at).total_seconds()
    return {"begin": job.started_at.isoformat(), "end": job.finished_at.isoformat(), "took_s": round(took_s, 2)}


def _last(trials: list[dict[str, Any]], job: JobAnswer) -> str:
    """When the job's last trial was stored: what comes after it is finals and the rest."""
    return max(str(trial["created_at"]) for trial in trials if trial["job_id"] == str(job.id))


def _search_s(trials: list[dict[str, Any]]) -> float:
    """From the first trial that was stored to the last: without starting, and without the finals."""
    stored = sorted(datetime.fromisoformat(trial["created_at"]) for trial in trials)
    return round((stored[-1] - stored[0]).total_seconds(), 2)


def _make_webhook(url: str, receiver: Receiver) -> UUID | str:
    body = {"name": "receiver", "url": f"http://127.0.0.1:{receiver.server_port}/ended", "states": ["done", "failed"]}
    made = httpx.post(f"{url}/v1/webhooks", json=body)
    made.raise_for_status()
    receiver.secret = base64.b64decode(made.json()["secret"].removeprefix("whsec_"))
    return str(made.json()["name"])


def look(host: Host) -> dict[str, Any]:
    """The report of all checks."""
    receiver, report = Receiver(), dict[str, Any]()
    with Client(host.url) as client:
        begun = time.monotonic()
        devices = wait_for(lambda: len(known_devices := client.devices()) == 2 and known_devices, READY_S)
        _make_webhook(host.url, receiver)
        report["devices"] = [{"uuid": d.uuid, "model": d.model, "worker": d.worker} for d in devices]
        environment = devices[0].environment
        report["environment"] = environment.model_dump(mode="json") if environment else None
        report["workers_ready_s"] = round(time.monotonic() - begun, 1)
        checks = Checks(host, client, devices)
        for name in ("side_by_side", "one_study_on_both", "killed_worker"):
            report[name] = getattr(checks, name)()
            print(f"{time.monotonic() - begun:6.1f} s  {name}: {json.dumps(report[name])}", flush=True)
        report["webhook"] = checks.webhook(receiver)
    receiver.shutdown()
    return report


def main() -> int:
    """Starts, looks, stops, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilewright-two-", ignore_cleanup_errors=True) as folder:
        os.environ["TILEWRIGHT_DATA_DIR"] = folder
        with running(Path(folder)) as host:
            report = look(host)
    if arguments.out:
        write(arguments.out, {"command": "python benchmarks/two_gpus.py", "date": now()} | report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
