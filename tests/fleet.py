"""Real worker processes on the CPU device, for tests that start, kill, freeze and stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tilewright.service.operations.jobs import cancel_job, job
from tilewright.service.operations.request_job import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import sqlalchemy_url

# Every fifth of a second a look; a worker silent for 1.5 s is given up. The defaults are 10 s and 60 s.
QUICK = {"TILEWRIGHT_HEARTBEAT_S": "0.3", "TILEWRIGHT_STALLED_AFTER_S": "1.5", "TILEWRIGHT_STOP_GRACE_S": "15"}
TINY = {"m": 24, "n": 16, "k": 20}


@dataclass
class Fleet:
    url: str
    folder: Path
    is_embedded: bool = False  # workers find, and revive, the server in `folder` by themselves
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @contextmanager
    def session(self) -> Iterator[Session]:
        engine = create_engine(sqlalchemy_url(self.url), poolclass=NullPool)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def start_worker(self, device: str = "cpu", **environment: str) -> subprocess.Popen[bytes]:
        variables = {**os.environ, **QUICK, "TILEWRIGHT_DATA_DIR": str(self.folder), **environment}
        if not self.is_embedded:
            variables["TILEWRIGHT_DATABASE_URL"] = self.url
        command = [sys.executable, "-m", "tilewright.service.worker.main", device]
        with (self.folder / "worker.log").open("ab") as log:
            worker = subprocess.Popen(command, env=variables, stderr=log)
        self.workers.append(worker)
        return worker

    def wait_for_device(self) -> str:
        def registered() -> str | None:
            with self.session() as session:
                return session.scalar(select(models.Device.uuid))

        return self.until(registered)

    def request(self, trials: int | None = 8, **more: object) -> uuid.UUID:
        budget = more.pop("budget", None) or BudgetRequest(trials=trials)
        wanted = {"kernel": "gemm", "shape": TINY, "variants": ["naive"], "budget": budget, "sampler": "random"} | more
        with self.session() as session:
            return request_job(session, JobRequest(**wanted))[0].id

    def job(self, job_id: uuid.UUID):
        with self.session() as session:
            return job(session, job_id)

    def cancel(self, job_id: uuid.UUID):
        with self.session() as session:
            return cancel_job(session, job_id)

    def wait_for_state(self, job_id: uuid.UUID, *states: str, within_s: float = 60):
        return self.until(lambda: (seen := self.job(job_id)).state in states and seen, within_s)

    def wait_for_trials(self, job_id: uuid.UUID, count: int) -> None:
        self.until(lambda: self.job(job_id).trials_done >= count)

    def trials(self, job_id: uuid.UUID) -> list[models.Trial]:
        with self.session() as session:
            query = select(models.Trial).where(models.Trial.job_id == job_id).order_by(models.Trial.number)
            return list(session.scalars(query))

    def assert_every_trial_once(self, job_id: uuid.UUID, count: int) -> None:
        trials = self.trials(job_id)
        assert [trial.number for trial in trials] == list(range(count))
        assert len({trial.configuration_hash for trial in trials}) == count
        assert self.job(job_id).trials_done == count

    def assert_finished(self, job_id: uuid.UUID, count: int, epochs: set[int]) -> None:
        done = self.wait_for_state(job_id, "done", "failed", within_s=120)
        assert (done.state, done.error) == ("done", None)
        self.assert_every_trial_once(job_id, count)
        assert {trial.epoch for trial in self.trials(job_id)} == epochs

    def runner_pids(self, job_id: uuid.UUID) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"tilewright.service.worker.runner" in words and str(job_id).encode() in words:
                    found.append(int(folder.name))
        return found

    def free_fleet_lock(self) -> None:
        """Drops the connections that hold a device in the database, as if their host had been cut off."""
        with self.session() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            )

    def until(self, look: Callable[[], Any], within_s: float = 60) -> Any:
        """What `look` returns once it is true; a database that is away counts as not yet."""
        deadline = time.monotonic() + within_s
        while True:
            with suppress(OperationalError):
                if seen := look():
                    return seen
            assert time.monotonic() < deadline, (self.folder / "worker.log").read_text()[-4000:]
            time.sleep(0.1)

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()


def server_pid(server: EmbeddedPostgres) -> int:
    """The process to kill so that the whole server dies."""
    (pid_file,) = server.home.glob("**/postmaster.pid")
    return int(pid_file.read_text().splitlines()[0])
