"""The cycles: strike, hold, undo, see that work goes on; in the end let all work end, and look at everything."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from chaos import invariants, shares
from chaos.load import Callers
from chaos.plan import Blow, plan
from chaos.world import World, running
from tilewright.service.client import Client
from tilewright.service.store import models
from tilewright.service.store.models import JobState

Say = Callable[[str], object]

LOOK_S = 0.2
PROGRESS_S = 240.0
"""Longer without a new trial or an ended job, and work has not gone on. Starting a worker and its job takes some 4 s of
CPU time; on a busy machine twenty times as long."""
SETTLE_S = 400.0
CALM_S = 4.0
"""Before schedules are paused, so that what was due in the last fault has been dealt with."""


@dataclass
class Report:
    """What was done and seen, and every breach as a sentence."""

    numbers: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class Chaos:
    """One run over one world."""

    def __init__(self, world: World, seed: int, say: Say) -> None:
        self.world, self.callers = world, Callers(world.port, seed, world.tokens)
        self.memory, self.violations = invariants.Memory(), list[str]()
        self._say = say
        self.by_kind: Counter[str] = Counter()
        self.went_on_s: list[float] = []

    def run(self, cycles: list[list[Blow]], seconds: float) -> None:
        """All of it; no further cycle begins after so many seconds."""
        with Client(f"http://127.0.0.1:{self.world.port}") as client:
            self._until(client.is_ready, 120, "the API never became ready")
        self._until(self._has_devices, 120, "the workers never registered")
        made = self.callers.schedules()
        self.callers.start()
        end = time.monotonic() + seconds
        for number, blows in enumerate(cycles):
            if time.monotonic() > end:
                break
            self._cycle(number, blows)
        self.callers.stop()
        self._keep_looking(CALM_S)
        settling = time.monotonic()
        self._until(self._in_time, SETTLE_S, "schedules never caught up")
        paused_at = self._pause()
        self._until(self._nothing_open, SETTLE_S, "jobs never ended")
        with self.world.fleet.session() as session:
            self.violations += self.memory.breaches(session)
            self.violations += invariants.of_results(session)
            self.violations += invariants.of_requests(session, self.callers.told)
            self.violations += invariants.of_schedules(session, made, paused_at)
            self.violations += shares.of_all(session)
            self.numbers = _figures(session)
            self.numbers["settled_after_s"] = round(time.monotonic() - settling, 1)
        self.violations += self.callers.told.wrong + self.world.witness.violations()
        stopping = time.monotonic()
        self.violations += self.world.stop()
        self.numbers["stopped_after_s"] = round(time.monotonic() - stopping, 1)

    def _cycle(self, number: int, blows: list[Blow]) -> None:
        begun = time.monotonic()
        undo: list[tuple[float, Callable[[], object]]] = []
        for blow in sorted(blows, key=lambda one: one.before_s):
            self._keep_looking(begun + blow.before_s - time.monotonic())
            self.by_kind[blow.kind] += 1
            undo.append((time.monotonic() + blow.hold_s, self.world.strike(blow)))
        for at, undo_it in sorted(undo, key=lambda one: one[0]):
            self._keep_looking(at - time.monotonic())
            undo_it()
        over = time.monotonic()
        names = " + ".join(blow.kind for blow in blows)
        goes_on = self._goes_on()
        self._until(lambda: next(goes_on), PROGRESS_S, f"no work went on after cycle {number}: {names}")
        self.went_on_s.append(time.monotonic() - over)
        self._look()
        self.world.witness.sweep()
        self._say(f"{number:4d}  {time.monotonic() - begun:5.1f} s  {names}")

    def _look(self) -> None:
        def look() -> bool:
            with self.world.fleet.session() as session:
                self.violations += self.memory.breaches(session) + shares.of_open_jobs(session)
            return True

        self._until(look, PROGRESS_S, "the database never answered")

    def _goes_on(self) -> Iterator[bool]:
        """At each step whether a trial was added or a job has ended since the first step that had an answer."""
        first: tuple[Any, ...] | None = None
        ended = select(func.count()).where(models.TuningJob.finished_at.is_not(None)).scalar_subquery()
        while True:
            with suppress(OperationalError), self.world.fleet.session() as session:
                now = session.execute(select(func.count(models.Trial.id), ended)).one()
                first = first or tuple(now)
                yield tuple(now) != first
                continue
            yield False

    def _has_devices(self) -> bool:
        with self.world.fleet.session() as session:
            return session.scalar(select(func.count(models.Device.id))) == len(self.world.workers)

    def _nothing_open(self) -> bool:
        with self.world.fleet.session() as session:
            open_jobs = select(func.count()).where(models.TuningJob.state.in_(invariants.OPEN))
            entries = text("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")
            return session.scalar(open_jobs) == 0 and session.scalar(entries) == 0

    def _in_time(self) -> bool:
        """Whether all due times but those of this second are dealt with: paused schedules drop what is late."""
        with self.world.fleet.session() as session:
            next_at = func.min(models.Schedule.next_at)
            late = select(next_at < func.clock_timestamp() - timedelta(seconds=1)).where(models.Schedule.enabled)
            return not session.scalar(late)

    def _pause(self) -> datetime:
        with self.world.fleet.session() as session:
            now: datetime = session.scalars(select(func.clock_timestamp())).one()
        self.callers.pause()
        return now

    def _keep_looking(self, for_s: float) -> None:
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            self.world.look_after()
            time.sleep(max(0.0, min(LOOK_S, end - time.monotonic())))

    def _until(self, look: Callable[[], object], within_s: float, breach: str) -> None:
        deadline = time.monotonic() + within_s
        while True:
            self.world.look_after()
            try:
                if look():
                    return
            except OperationalError:
                pass
            if time.monotonic() > deadline:
                self.violations.append(f"{breach} (waited {within_s:.0f} s)")
                return
            time.sleep(LOOK_S)


def _figures(session: Any) -> dict[str, Any]:
    states = session.execute(select(models.TuningJob.state, func.count()).group_by(models.TuningJob.state))
    errors = session.execute(
        select(models.TuningJob.error, func.count())
        .where(models.TuningJob.state == JobState.FAILED)
        .group_by(models.TuningJob.error)
    )
    outcomes = session.execute(select(models.Trial.outcome, func.count()).group_by(models.Trial.outcome))
    late = func.extract("epoch", func.max(models.ScheduleFire.created_at - models.ScheduleFire.fire_at))
    return {
        "jobs": {state.value: count for state, count in states},
        "why_jobs_failed": dict(errors.all()),
        "trials": {outcome.value: count for outcome, count in outcomes},
        "bests": session.scalar(select(func.count(models.BestConfiguration.id))),
        "due_times": session.scalar(select(func.count(models.ScheduleFire.id))),
        "most_late_s": round(float(session.scalar(select(late)) or 0), 1),
        "jobs_by_key": shares.begun_by_key(session),
        "most_begun_before_a_waiting_job": shares.most_begun_before(session)[0],
        "most_fires_a_minute": shares.most_fires_a_minute(session),
        "jobs_of_schedules": session.scalar(select(func.count()).where(models.TuningJob.schedule_id.is_not(None))),
        "jobs_with_several_epochs": session.scalar(select(func.count()).where(models.TuningJob.epoch > 1)),
        "most_epochs_of_a_job": session.scalar(select(func.max(models.TuningJob.epoch))),
    }


def chaos(folder: Path, seed: int, cycles: int, *, seconds: float = math.inf, say: Say = str) -> Report:
    """The report of so many cycles, whose faults the seed decides; of fewer where the time is over before."""
    with running(folder) as world:
        run = Chaos(world, seed, say)
        with closing(run.callers):
            run.run(plan(seed, cycles), seconds)
        told, begun = run.callers.told, world.witness.begun()
        numbers: dict[str, Any] = {
            "cycles": len(run.went_on_s),
            "by_kind": dict(run.by_kind),
            "devices": len(world.workers),
        }
        numbers |= run.numbers | {
            "requests_acknowledged": len(told.jobs),
            "requests_beyond_a_quota": told.beyond_quota,
            "requests_repeated_until_heard": dict(told.refusals),
            "evaluations_witnessed": len(begun),
            "runners_witnessed": len(set(begun)),
            "starts_again": {one.name: sum(one.exits.values()) for one in world.kept},
            "exit_statuses": {one.name: {str(s): n for s, n in one.exits.items()} for one in world.kept},
            "work_went_on_after_s": {
                "median": round(statistics.median(run.went_on_s), 2),
                "most": round(max(run.went_on_s), 2),
            },
        }
        return Report(numbers, run.violations)
