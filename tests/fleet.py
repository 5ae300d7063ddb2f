"""Real worker and API processes on the CPU device, for tests that start, kill, freeze and stop them."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from tilewright.kernels.catalogue import Catalogue
from tilewright.service.operations.jobs.jobs import cancel_job, job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.service.store.embedded import EmbeddedPostgres
from tilewright.service.store.session import sqlalchemy_url

# Every third of a second a heartbeat; a worker silent for 1.5 s is given up. The defaults are 10 s and 60 s.
QUICK = {"TILEWRIGHT_HEARTBEAT_S": "0.3", "TILEWRIGHT_STALLED_AFTER_S": "1.5", "TILEWRIGHT_STOP_GRACE_S": "15"}
# The same where nothing is to die: a process that a busy machine lets stand for seconds is not given up.
PATIENT = QUICK | {"TILEWRIGHT_STALLED_AFTER_S": "120", "TILEWRIGHT_STOP_GRACE_S": "60"}
TINY = {"m": 24, "n": 16, "k": 20}


@cache
def _engine(url: str, *, keeps: bool) -> Engine:
    """Its connections are kept where the server stays: a look at a job then costs a tenth."""
    if keeps:
        return create_engine(sqlalchemy_url(url), pool_pre_ping=True)
    return create_engine(sqlalchemy_url(url), poolclass=NullPool)


@dataclass
class Fleet:
    url: str
    folder: Path
    is_embedded: bool = False  # workers find, and revive, the server in `folder` by themselves
    settings: Mapping[str, str] = field(default_factory=lambda: QUICK)
    patience_s: float = 150  # for what must come, but may take its time; what must be quick says how quick
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    apis: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with Session(self._engine(), expire_on_commit=False) as session, session.begin():
            yield session

    def _engine(self) -> Engine:
        return _engine(self.url, keeps=self.settings is PATIENT and not self.is_embedded)

    def start_worker(
        self, device: str = "cpu", *, inside: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        """`inside`: words before the command, as those that enter a namespace."""
        words = ("tilewright.service.worker.main", device)
        worker = self._start(*words, log="worker.log", inside=inside, **environment)
        self.workers.append(worker)
        return worker

    def start_api(self, port: int, **environment: str) -> subprocess.Popen[bytes]:
        api = self._start("tilewright.service.cli", "serve", "--port", str(port), log="api.log", **environment)
        self.apis.append(api)
        return api

    def _start(
        self, module: str, *words: str, log: str, inside: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[bytes]:
        database = {} if self.is_embedded else {"TILEWRIGHT_DATABASE_URL": self.url}
        variables = {**os.environ, **self.settings, "TILEWRIGHT_DATA_DIR": str(self.folder), **database, **environment}
        with (self.folder / log).open("ab") as said:
            return subprocess.Popen([*inside, sys.executable, "-m", module, *words], env=variables, stderr=said)

    def wait_for_device(self) -> str:
        def registered() -> str | None:
            with self.session() as session:
                return session.scalar(select(models.Device.uuid))

        return self.until(registered)

    def know(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Requests may name the kernel of that folder, as those to an API that has it in its settings."""
        catalogue = Catalogue.load([folder])
        monkeypatch.setattr("tilewright.service.operations.jobs.request.catalogue", lambda: catalogue)

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

    def wait_for_state(self, job_id: uuid.UUID, *states: str, within_s: float | None = None):
        return self.until(lambda: (seen := self.job(job_id)).state in states and seen, within_s)

    def wait_for_trials(self, job_id: uuid.UUID, count: int) -> None:
        """Until so many are done; a job that has failed before makes no more, and says why at once."""

        def are_done() -> bool:
            seen = self.job(job_id)
            assert seen.trials_done >= count or seen.state != "failed", (seen.error, self.said())
            return seen.trials_done >= count

        self.until(are_done)

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
        done = self.wait_for_state(job_id, "done", "failed", within_s=max(120, self.patience_s))
        assert (done.state, done.error) == ("done", None)
        self.assert_every_trial_once(job_id, count)
        assert {trial.epoch for trial in self.trials(job_id)} == epochs

    def assert_nothing_lost_or_doubled(self, job_id: uuid.UUID) -> None:
        """Of every study: numbers without gaps, each configuration once. One current best. The engine is done."""
        with self.session() as session:
            row = session.get_one(models.TuningJob, job_id)
            for study in session.scalars(select(models.Study).where(models.Study.problem_id == row.problem_id)):
                query = select(models.Trial).where(models.Trial.study_id == study.id).order_by(models.Trial.number)
                trials = list(session.scalars(query))
                assert [trial.number for trial in trials] == list(range(study.next_number))
                assert len({trial.configuration_hash for trial in trials}) == len(trials)
            current = session.scalars(
                select(models.BestConfiguration)
                .join(models.Study, models.Study.environment_id == models.BestConfiguration.environment_id)
                .where(
                    models.Study.id == row.study_id,
                    models.BestConfiguration.problem_id == row.problem_id,
                    models.BestConfiguration.superseded_by_id.is_(None),
                    models.BestConfiguration.retracted_at.is_(None),
                )
            ).all()
            counted = session.scalar(
                select(func.count()).where(models.Trial.job_id == job_id, models.Trial.study_id == row.study_id)
            )
        assert counted == row.trials_done
        assert [best.job_id for best in current] == ([job_id] if row.state is models.JobState.DONE else [])
        self.until(lambda: not self.engine_entries(job_id))  # finished ones are removed

    def engine_entries(self, job_id: uuid.UUID) -> list[str]:
        """States of the job's entries in the engine."""
        with self.session() as session:
            query = text("SELECT status::text FROM procrastinate_jobs WHERE args->>'job_id' = :job")
            return list(session.scalars(query, {"job": str(job_id)}))

    def runner_pids(self, job_id: uuid.UUID) -> list[int]:
        wanted = {b"tilewright.service.worker.job_process", str(job_id).encode()}
        found = [pid for pid, words in command_lines() if wanted <= set(words)]
        return [pid for pid in found if _parent_of(pid) not in found]  # a child has its parent's words until it begins

    def evaluation_pids(self) -> list[int]:
        """Host programs at work or waiting for the fleet's runners."""
        return [pid for pid, words in self._own() if words[1:2] in ([b"verify"], [b"sample"])]

    def wait_for_hung_evaluation(self) -> int:
        """The host program that was verifying a second ago and still is."""
        seen: dict[int, float] = {}

        def hung() -> int | None:
            now = time.monotonic()
            verifying = {pid for pid, words in self._own() if words[1:2] == [b"verify"]}
            for pid in verifying:
                seen.setdefault(pid, now)
            return next((pid for pid in verifying if now - seen[pid] > 1), None)

        return self.until(hung)

    def compiler_pids(self) -> list[int]:
        """Compilers at work for the fleet's runners."""
        return [pid for pid, words in self._own() if any(word.endswith(b"/kernel.cpp") for word in words)]

    def _own(self) -> Iterator[tuple[int, list[bytes]]]:
        mark = f"TILEWRIGHT_DATA_DIR={self.folder}".encode()
        return ((pid, words) for pid, words in command_lines() if mark in _environment_of(pid))

    def let_silence_last(self) -> None:
        """Makes heartbeats and trials as old as those of a worker that is given up: no test waits so long."""
        age = {"age": float(self.settings["TILEWRIGHT_STALLED_AFTER_S"])}
        with self.session() as session:
            for aged in (
                "procrastinate_workers SET last_heartbeat = last_heartbeat",
                "trials SET created_at = created_at",
            ):
                session.execute(text(f"UPDATE {aged} - make_interval(secs => :age)"), age)

    def free_fleet_lock(self) -> None:
        """Drops the connections that hold a device in the database, as if their host had been cut off."""
        with self.session() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            )

    def until(self, look: Callable[[], Any], within_s: float | None = None) -> Any:
        """What `look` returns once it is true; a database that is away counts as not yet."""
        deadline = time.monotonic() + (within_s or self.patience_s)
        while True:
            with suppress(OperationalError):
                if seen := look():
                    return seen
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)  # each look costs the processes that are waited for ten milliseconds of their core

    def said(self) -> str:
        """The ends of the logs that there are."""
        return "\n".join(f"{log.name}: {log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        for process in (*self.workers, *self.apis):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self._engine().dispose()


def command_lines() -> Iterator[tuple[int, list[bytes]]]:
    """Process id and words of every process that can be looked at."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")


def _parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()[1])
    return 0


def _environment_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


_PORTS = itertools.count(1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) + os.getpid() % 500)


def free_port() -> int:
    """A port that nobody listens on, nor gets until it is used: none that the system or another test process gives."""
    while True:
        port = 20_000 + next(_PORTS) % 12_000  # below those that systems give to connections: 32768 on Linux
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def server_pid(server: EmbeddedPostgres) -> int:
    """The process to kill so that the whole server dies."""
    (pid_file,) = server.home.glob("**/postmaster.pid")
    return int(pid_file.read_text().splitlines()[0])
