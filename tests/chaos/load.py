"""Callers of the API while it is struck: they ask again until they are heard, and remember what they were told."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.service.client import ApiProblemError, ApiUnreachableError, Client
from tilewright.service.client.errors import TRANSIENT
from tilewright.service.operations.answers import ScheduleAnswer
from tilewright.service.operations.requests import BudgetRequest, JobRequest, ScheduleProblem, ScheduleRequest

T = TypeVar("T")

AT_ONCE = 3
"""Jobs kept open, for two devices: one waits."""
GIVE_UP_S = 300.0
LOOK_S = 0.3
CANCELLED = 0.1

_BUDGET = BudgetRequest(trials=2)
_SMALL = [ScheduleProblem(kernel="gemm", shape={"m": 12, "n": 8, "k": 10})]
SCHEDULES = (  # with the seconds between their due times
    (1, ScheduleRequest(name="every second, finds nothing", cron="* * * * * *", target="stale", budget=_BUDGET)),
    (
        20,
        ScheduleRequest(
            name="every 20 s, skips", cron="*/20 * * * * *", problems=_SMALL, variants=["naive"], budget=_BUDGET
        ),
    ),
    (
        30,
        ScheduleRequest(
            name="every 30 s, queues",
            cron="*/30 * * * * *",
            problems=_SMALL,
            variants=["naive"],
            budget=_BUDGET,
            overlap="queue",
        ),
    ),
)


@dataclass
class Told:
    """What the API acknowledged, and answers that it should never give."""

    jobs: dict[str, uuid.UUID] = field(default_factory=dict)  # by idempotency key
    trials: dict[uuid.UUID, int] = field(default_factory=dict)  # budgets
    cancelled: set[uuid.UUID] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # passing ones: the API or its database was away


class Callers:
    """One thread that keeps jobs open, cancels some, and asks how they stand; from `start` to `stop`."""

    def __init__(self, port: int, seed: int) -> None:
        self.told = Told()
        self._client = Client(f"http://127.0.0.1:{port}", timeout_s=10.0)
        self._chance = random.Random(seed)
        self._shapes = ({"m": m, "n": n, "k": 20} for m in itertools.count(16) for n in (16, 24, 32))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="callers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def close(self) -> None:
        self._stopping.set()
        self._client.close()

    def ask(self, what: Callable[[Client], T]) -> T:
        """The API's answer, asked for until there is one."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return what(self._client)
            except ApiUnreachableError:
                self.told.refusals["no answer"] += 1
                failed = "no answer"
            except ApiProblemError as problem:
                if problem.status not in TRANSIENT:
                    self.told.wrong.append(f"the API answered {problem.status}: {problem}")
                self.told.refusals[str(problem.status)] += 1
                failed = f"{problem.status}: {problem}"
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API gave no answer for {GIVE_UP_S:.0f} s; last: {failed}")
            time.sleep(LOOK_S)

    def schedules(self) -> list[tuple[int, ScheduleAnswer]]:
        """The schedules, made, with the seconds between their due times."""
        return [(every_s, self.ask(lambda c, r=request: c.create_schedule(r))) for every_s, request in SCHEDULES]

    def _loop(self) -> None:
        open_jobs: set[uuid.UUID] = set()
        try:
            while not self._stopping.wait(LOOK_S):
                while len(open_jobs) < AT_ONCE:
                    open_jobs.add(self._request())
                job_id = self._chance.choice(sorted(open_jobs))
                if self.ask(lambda c, j=job_id: c.job(j)).state not in {"queued", "running"}:
                    open_jobs.discard(job_id)
        except TimeoutError as error:
            self.told.wrong.append(str(error))

    def _request(self) -> uuid.UUID:
        key, trials = uuid.uuid4().hex, self._chance.randint(6, 12)
        request = JobRequest(
            kernel="gemm",
            shape=next(self._shapes),
            variants=["naive"],
            sampler="random",
            budget=BudgetRequest(trials=trials),
        )
        job, _ = self.ask(lambda client: client.request_job(request, idempotency_key=key))
        self.told.jobs[key], self.told.trials[job.id] = job.id, trials
        if self._chance.random() < CANCELLED:
            self._stopping.wait(self._chance.uniform(0, 2))
            self.ask(lambda client: client.cancel_job(job.id))
            self.told.cancelled.add(job.id)
        return job.id
