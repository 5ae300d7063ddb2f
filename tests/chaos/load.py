"""Callers of the API while it is struck: they ask again until they are heard, and remember what they were told."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

from tilewright.service.client import ApiProblemError, ApiUnreachableError, Client
from tilewright.service.client.errors import TRANSIENT
from tilewright.service.operations.answers import JobAnswer, ScheduleAnswer
from tilewright.service.operations.requests import (
    BudgetRequest,
    JobRequest,
    KeyRequest,
    ScheduleProblem,
    ScheduleRequest,
)

T = TypeVar("T")

GIVE_UP_S = 300.0
LOOK_S = 0.3
ASK_EVERY_S = 1.0
"""Ten callers that ask three times a second each would be a load of their own."""
CANCELLED = 0.1

ADMIN = "boss"
GREEDY = "key-0"
"""It always asks for more jobs than it may have; the others keep one open."""
QUOTAS = {GREEDY: 6} | {f"key-{number}": 2 for number in range(1, 10)}
"""Open jobs that each of the ten keys may have, those of its schedules too."""
KEYS = (
    KeyRequest(name=ADMIN, scope="admin"),
    *(KeyRequest(name=name, scope="tune", max_open_jobs=most) for name, most in QUOTAS.items()),
)

_BUDGET = BudgetRequest(trials=2)
_SMALL = [ScheduleProblem(kernel="gemm", shape={"m": 12, "n": 8, "k": 10})]
_JOBS = {"problems": _SMALL, "variants": ["naive"], "budget": _BUDGET}
_STALE = {"cron": "* * * * * *", "target": "stale", "budget": _BUDGET}
SCHEDULES = (  # with their keys, and the seconds between their due times
    ("key-1", 1, ScheduleRequest(name="every second, finds nothing", **_STALE)),
    ("key-2", 20, ScheduleRequest(name="every 20 s, skips", cron="*/20 * * * * *", **_JOBS)),
    ("key-3", 30, ScheduleRequest(name="every 30 s, queues", cron="*/30 * * * * *", overlap="queue", **_JOBS)),
)
BEYOND = tuple(ScheduleRequest(name=f"every second, greedy {n}", **_STALE) for n in range(3))
"""Schedules of the greedy key: 180 fires a minute, of which it may have 120."""


@dataclass
class Told:
    """What the API acknowledged, and answers that it should never give."""

    jobs: dict[tuple[str, str], uuid.UUID] = field(default_factory=dict)  # by name of the key and idempotency key
    trials: dict[uuid.UUID, int] = field(default_factory=dict)  # budgets
    cancelled: set[uuid.UUID] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # passing ones: the API or its database was away
    beyond_quota: int = 0


class Caller:
    """One key at work: keeps jobs open, cancels some, and asks how they stand; from `start` to `stop`."""

    def __init__(self, port: int, seed: int, name: str, token: str, told: Told) -> None:
        self.name, self.told = name, told
        self._client = Client(f"http://127.0.0.1:{port}", key=token, timeout_s=10.0)
        self._chance = random.Random(f"{seed} {name}")
        number = len(QUOTAS) if name == ADMIN else list(QUOTAS).index(name)
        # No two keys ask for the same problem: the second would join the job of the first.
        self._shapes = ({"m": m, "n": n, "k": 20 + 4 * number} for m in itertools.count(16) for n in (16, 24, 32))
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def close(self) -> None:
        self._stopping.set()
        self._client.close()

    def ask(self, what: Callable[[Client], T]) -> T:
        """The API's answer, asked for until there is one; raises ApiProblemError where a quota refuses."""
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return what(self._client)
            except ApiUnreachableError:
                self.told.refusals["no answer"] += 1
                failed = "no answer"
            except ApiProblemError as problem:
                if problem.status == HTTPStatus.FORBIDDEN:
                    raise
                if problem.status not in TRANSIENT:
                    self.told.wrong.append(f"the API answered {problem.status}: {problem}")
                self.told.refusals[str(problem.status)] += 1
                failed = f"{problem.status}: {problem}"
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API gave no answer for {GIVE_UP_S:.0f} s; last: {failed}")
            time.sleep(LOOK_S)

    def _loop(self) -> None:
        open_jobs: set[uuid.UUID] = set()
        most = QUOTAS[self.name] + 1 if self.name == GREEDY else 1
        try:
            while not self._stopping.wait(ASK_EVERY_S):
                while len(open_jobs) < most and (job_id := self._request()) is not None:
                    open_jobs.add(job_id)
                if not open_jobs:  # jobs of its schedule take all that it may have
                    continue
                job_id = self._chance.choice(sorted(open_jobs))
                if self.ask(lambda c, j=job_id: c.job(j)).state not in {"queued", "running"}:
                    open_jobs.discard(job_id)
        except TimeoutError as error:
            self.told.wrong.append(str(error))

    def _request(self) -> uuid.UUID | None:
        """The id of a new job; None where the quota refuses it."""
        key, trials = str(next(self._numbers)), self._chance.randint(4, 8)
        request = JobRequest(
            kernel="gemm",
            shape=next(self._shapes),
            variants=["naive"],
            sampler="random",
            budget=BudgetRequest(trials=trials),
        )
        try:
            job = self._sent(request, key)
        except ApiProblemError as problem:
            if f"may have {QUOTAS[self.name]} jobs" not in str(problem):
                self.told.wrong.append(f"the API refused {self.name}: {problem}")
            self.told.beyond_quota += 1
            return None
        self.told.jobs[self.name, key], self.told.trials[job.id] = job.id, trials
        if self._chance.random() < CANCELLED:
            self._stopping.wait(self._chance.uniform(0, 2))
            self.ask(lambda client: client.cancel_job(job.id))
            self.told.cancelled.add(job.id)
        return job.id

    def _sent(self, request: JobRequest, key: str) -> JobAnswer:
        return self.ask(lambda client: client.request_job(request, idempotency_key=key))[0]


class Callers:
    """The ten keys, and an admin who makes and pauses their schedules."""

    def __init__(self, port: int, seed: int, tokens: Mapping[str, str]) -> None:
        self.told = Told()
        made = {name: Caller(port, seed, name, token, self.told) for name, token in tokens.items()}
        self.admin, self._by_name = made.pop(ADMIN), made

    def start(self) -> None:
        for caller in self._by_name.values():
            caller.start()

    def stop(self) -> None:
        for caller in self._by_name.values():
            caller.stop()

    def close(self) -> None:
        for caller in (self.admin, *self._by_name.values()):
            caller.close()

    def schedules(self) -> list[tuple[int, ScheduleAnswer]]:
        """The schedules of which every due time counts, made, with the seconds between their due times."""
        for request in BEYOND:
            self._create(GREEDY, request)
        return [(every_s, self._create(name, request)) for name, every_s, request in SCHEDULES]

    def pause(self) -> None:
        """Pauses every schedule."""
        for schedule in self.admin.ask(lambda client: client.schedules()):
            self.admin.ask(lambda client, i=schedule.id: client.set_enabled(i, False))

    def _create(self, name: str, request: ScheduleRequest) -> ScheduleAnswer:
        return self._by_name[name].ask(lambda client: client.create_schedule(request))
