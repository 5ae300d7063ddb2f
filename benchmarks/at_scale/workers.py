"""Simulated workers, many in one process: `python -m at_scale.workers`.

A line of JSON on stdin says which; they work until stdin ends. What they measured goes to stdout, in JSON.

Each has the product's own engine, heartbeat and maintenance, and writes by the product's own operations; only the
device is missing: a trial waits for `trial_s` and takes its outcome from the recording. No search space is listed and
nothing is predicted, which cost a worker's CPU and not the database's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import psycopg
from at_scale.fill import ENVIRONMENT, device_model, recorded, slug, space_by_source
from procrastinate import exceptions
from sqlalchemy.orm import Session

from tilewright.kernels.space import Configuration
from tilewright.service.operations import registry
from tilewright.service.operations.best import priors
from tilewright.service.operations.best.publish import job_result, publish_best
from tilewright.service.operations.fleet import fleet
from tilewright.service.operations.jobs import progress
from tilewright.service.operations.jobs.record_trial import TrialContext, record_trial
from tilewright.service.operations.studies import rows
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.engine_queue import queue_of_device, queue_of_model
from tilewright.service.store.patience import patiently
from tilewright.service.worker.engine import TryAgainError, make_app
from tilewright.service.worker.leases import Leases
from tilewright.service.worker.maintenance import Maintenance
from tilewright.service.worker.runner import OTHERS_EVERY_S, Assignment
from tilewright.tuner.loop.finals import Finalist
from tilewright.tuner.loop.statistics import median, median_interval, spread
from tilewright.tuner.loop.study import Trial, TuneResult
from tilewright.tuner.outcome import Evaluation, Outcome, Resources, Timing

T = TypeVar("T")
MODEL = device_model(1)
HELD_ASKS = (
    "SELECT t.id FROM trials t JOIN studies s ON s.id = t.study_id JOIN problems p ON p.id = s.problem_id LIMIT 1"
)
"""What a held connection has asked once, so that its server process knows the tables as a worker's does."""


@dataclass
class Figures:
    """Milliseconds of each kind of transaction."""

    took_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)

    def timed(self, name: str, work: Callable[[Session], T]) -> T:
        """Its result, from a transaction."""
        began = time.perf_counter()
        result = patiently(work)
        self.took_ms[name].append(round(1e3 * (time.perf_counter() - began), 2))
        return result


@dataclass(frozen=True)
class Space:
    """In the place of a listed space: all that a study's row has of one."""

    space_by_source: dict[str, int]

    def hash(self) -> str:
        """As the filled studies have."""
        return "synthetic"

    def __len__(self) -> int:
        return 1000


def evaluation(samples: tuple[float, ...]) -> Evaluation:
    """As the device would have given it."""
    timing = Timing(median(samples), spread(samples), samples, "warm")
    resources = Resources(registers=128, shared_bytes=33_280, spill_bytes=0, occupancy=0.25)
    return Evaluation(Outcome.MEASURED, warm=timing, resources=resources, bound_ratio=0.1, compile_ms=400.0)


class Worker:
    """One worker of one synthetic device."""

    def __init__(self, number: int, trial_s: float, figures: Figures, stopping: threading.Event) -> None:
        self.number, self.trial_s, self.figures, self.stopping = number, trial_s, figures, stopping
        self.name = f"no-host:{number}:cuda:0"
        self.device = f"GPU-{slug(number)}"

    def register(self) -> None:
        """As a worker does at its start."""
        model = device_model(self.number)
        patiently(
            lambda s: registry.register_device(s, model, self.device, "no-host", 0, ENVIRONMENT, worker=self.name).id
        )

    async def serve(self, url: str) -> None:
        """Takes jobs until cancelled."""
        app = make_app(url, self._run, patiently(fleet.workers_alive))
        queues = [queue_of_model(slug(self.number)), queue_of_device(self.device)]
        while not self.stopping.is_set():
            with suppress(exceptions.ProcrastinateException, psycopg.Error):
                async with app.open_async():
                    await app.run_worker_async(queues=queues, name=self.name)

    async def beat(self) -> None:
        """The device's heartbeat; the engine's own comes beside it."""
        while True:
            await asyncio.to_thread(self.figures.timed, "heartbeat", lambda s: registry.heartbeat(s, self.device))
            await asyncio.sleep(settings().heartbeat_s)

    async def _run(self, job_id: uuid.UUID, engine_id: int) -> None:
        try:
            await asyncio.to_thread(self._job, job_id, engine_id)
        except TryAgainError:
            raise
        except Exception as error:
            self.figures.failed.append(f"{type(error).__name__}: {error}"[:300])
            raise

    def _job(self, job_id: uuid.UUID, engine_id: int) -> None:
        timed = self.figures.timed
        epoch = timed("take", lambda s: progress.take_job(s, job_id, engine_id, self.name))
        if epoch is None:
            return
        assignment = timed("load", lambda s: Assignment.load(s, job_id))
        context, study, spent = timed("begin", lambda s: self._begin(s, assignment, epoch))
        tried = timed("trials before", lambda s: rows.prior_trials(s, study.id, assignment.kernel))
        timed("priors", lambda s: priors.priors(s, assignment.kernel, assignment.problem, study))
        timed("winners", lambda s: priors.winners(s, assignment.kernel, assignment.problem, study))
        known = {trial.configuration for trial in tried}
        fresh = ((one, entry.samples_ms["warm"]) for one, entry in recorded_pool() if one not in known)
        most = assignment.job.budget_trials or 1
        with Leases(study.id) as leases:
            newest = max((trial.number for trial in tried), default=-1)
            measured = list(self._search(context, leases, fresh, newest, range(spent.trials, most)))
        if self.stopping.is_set():
            patiently(lambda s: progress.hand_back(s, job_id, epoch))
            raise TryAgainError("stopped")
        timed("phase", lambda s: progress.set_phase(s, job_id, epoch, "finals"))
        timed("settle", lambda s: self._settle(s, assignment, epoch, study.id, measured))

    def _begin(self, session: Session, assignment: Assignment, epoch: int) -> tuple[TrialContext, models.Study, Any]:
        job, kernel = assignment.job, assignment.kernel
        environment = registry.environment_row(session, ENVIRONMENT)
        device = registry_device(session, self.device)
        space: Any = Space(dict(space_by_source(kernel)))
        study = rows.study_row(session, job.problem_id, device.model_id, environment.id, space)
        spent = progress.begin_study(session, job.id, epoch, study.id)
        variants = registry.kernel_variant_ids(session, kernel)
        return TrialContext(job.id, epoch, study.id, device.id, kernel, assignment.problem, variants), study, spent

    def _search(self, context: TrialContext, leases: Leases, fresh: Any, newest: int, numbers: range) -> Any:
        began, timed = time.monotonic(), self.figures.timed

        def others(session: Session) -> object:
            return rows.trials_of_others(session, context.study_id, context.kernel, context.job_id, newest)

        for number, (configuration, samples) in zip(numbers, fresh, strict=False):
            leases.claim(configuration)
            until = time.monotonic() + self.trial_s
            while (left := until - time.monotonic()) > 0 and not self.stopping.wait(min(left, OTHERS_EVERY_S)):
                timed("others", others)
            if self.stopping.is_set():
                return
            trial = Trial(number, configuration, evaluation(samples), number * self.trial_s, self.trial_s)
            timed("trial", partial(_record, context=context, trial=trial, elapsed_s=time.monotonic() - began))
            leases.release(configuration)
            yield configuration, samples

    def _settle(self, session: Session, assignment: Assignment, epoch: int, study_id: int, measured: Any) -> None:
        ordered = sorted(measured, key=lambda one: median(one[1]))[:4]
        finalists = tuple(_finalist(configuration, samples) for configuration, samples in ordered)
        best = finalists[0] if finalists else None
        result = TuneResult(best, finalists, None, 1.0, 2.0, "trials")
        study, job = session.get_one(models.Study, study_id), session.get_one(models.TuningJob, assignment.job.id)
        published = publish_best(session, job, study, result)
        told = job_result(result) | {"published": published is not None}
        progress.end_job(session, job.id, epoch, models.JobState.DONE, result=told)


def _record(session: Session, context: TrialContext, trial: Trial, elapsed_s: float) -> object:
    return record_trial(session, context, trial, trial.number + 1, elapsed_s)


def _finalist(configuration: Configuration, samples: tuple[float, ...]) -> Finalist:
    interval = median_interval(samples)
    return Finalist(configuration, median(samples), (interval.low, interval.high), samples, ties=False)


def registry_device(session: Session, device: str) -> models.Device:
    """Its row."""
    return session.query(models.Device).filter_by(uuid=device).one()


_POOL: list[Any] = []


def recorded_pool() -> list[Any]:
    """Read once a process."""
    if not _POOL:
        _POOL.extend(recorded())
    return _POOL


async def run(job: dict[str, Any], figures: Figures) -> None:
    """All workers of this process, until stdin ends."""
    recorded_pool()
    stopping = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * job["count"] + 4))
    numbers = range(job["first"], job["first"] + job["count"])
    crew = [Worker(number, job["trial_s"], figures, stopping) for number in numbers]
    with ExitStack() as stack:
        for _ in range(job["held"] * job["count"]):
            held = stack.enter_context(psycopg.connect(job["url"], autocommit=True))
            held.execute(HELD_ASKS).fetchall()
        for worker in crew:
            await asyncio.to_thread(worker.register)
            stack.enter_context(Maintenance())
        tasks = [asyncio.create_task(work) for worker in crew for work in (worker.serve(job["url"]), worker.beat())]
        await asyncio.to_thread(sys.stdin.read)
        stopping.set()
        await asyncio.sleep(2.0)  # jobs are handed back
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    """Reads the request, works, writes what was measured."""
    logging.basicConfig(level=logging.ERROR)
    job, figures = json.loads(sys.stdin.readline()), Figures()
    store_session.configure(job["url"])
    asyncio.run(run(job, figures))
    json.dump({"took_ms": figures.took_ms, "failed": figures.failed, "cpu_s": time.process_time()}, sys.stdout)


if __name__ == "__main__":
    main()
