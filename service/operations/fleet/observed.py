"""Figures of the whole installation for its metrics, read from the database at most every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.fleet.observed_trials import TrialSums, TrialTally
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.session import made_engine

logger = logging.getLogger(__name__)

BELIEVED_S = 5.0
"""How long figures are reused: the database is asked that often, however many clients ask this process."""

PATIENCE_MS = 4000
"""Time limit of each statement, so that monitoring does not add much to the load of a busy database."""

FIRES_OF = text("INTERVAL '10 minutes'")


@dataclass(frozen=True)
class Observed:
    """Figures of the installation at one moment."""

    open_jobs: Mapping[tuple[str, str], int]  # by queue and state
    ended_jobs: Mapping[str, int]  # by state, since the database was made
    oldest_queued_s: float  # how long the job waits that has waited longest; 0 without any
    trials: TrialSums | None  # None while they are still being counted
    workers: Mapping[tuple[str, str], int]  # by device model and state: alive, silent, lost
    caches: Mapping[str, tuple[int, int]]  # by device: files and bytes of its worker's compiled kernels
    schedules_late_s: float  # how long ago the due time was that has waited longest to be fired; 0 where all fired
    fire_delay_s: float  # the longest delay of the fires of the last ten minutes
    deliveries: Mapping[str, int]  # messages of webhooks that are kept, by state
    demand: int  # problems
    database_bytes: int


@dataclass
class Observer:
    """The newest figures, shared by all clients of this process."""

    clock: Callable[[], float] = time.monotonic
    _tally: TrialTally = field(default_factory=TrialTally)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: Observed | None = None
    _seen_s: float = float("-inf")

    def look(self) -> Observed | None:
        """Figures of the last five seconds; None where the database did not answer."""
        # While one thread reads, others take the figures before: waiting would hold the threads of requests.
        if not self._lock.acquire(blocking=self._seen_s == float("-inf")):
            return self._seen
        try:
            if self.clock() - self._seen_s >= BELIEVED_S:
                self._seen, self._seen_s = self._look(), self.clock()
            return self._seen
        finally:
            self._lock.release()

    def _look(self) -> Observed | None:
        try:
            with transaction() as session:
                session.execute(text(f"SET LOCAL statement_timeout = {PATIENCE_MS}"))
                return _observe(session, self._tally)
        except DatabaseUnavailableError as error:
            logger.warning("The database cannot be observed now. %s", error)
            return None


@dataclass(frozen=True)
class Connections:
    """Connections of this process to the database: in use, and open in all."""

    in_use: int
    open: int


def connections() -> Connections:
    """The connections of this process; none before the first was made."""
    made = made_engine()
    if made is None:
        return Connections(0, 0)
    pool = made.pool
    assert isinstance(pool, QueuePool)  # noqa: S101 - for the type checker: what engines have unless told otherwise
    return Connections(pool.checkedout(), pool.checkedout() + pool.checkedin())


def _observe(session: Session, tally: TrialTally) -> Observed:
    job, device, schedule, fire = models.TuningJob, models.Device, models.Schedule, models.ScheduleFire
    delivery, is_open = models.WebhookDelivery, job.state.in_([JobState.QUEUED, JobState.RUNNING])
    waits = func.extract("epoch", func.now() - func.min(job.created_at))
    # What fired in the future, by a clock that was ahead, is silent for so long.
    ahead = func.max(schedule.last_fire_at) - func.now()
    late = func.extract("epoch", func.greatest(func.now() - func.min(schedule.next_at), ahead))
    delay = func.extract("epoch", func.max(fire.created_at - fire.fire_at))
    return Observed(
        open_jobs=_by_two(
            session, select(job.queue, job.state, func.count()).where(is_open).group_by(job.queue, job.state)
        ),
        ended_jobs=_by_one(session, select(job.state, func.count()).where(~is_open).group_by(job.state)),
        oldest_queued_s=_seconds(session, select(waits).where(job.state == JobState.QUEUED)),
        trials=tally.look(session),
        workers=_workers(session),
        caches={
            uuid: (files or 0, held or 0)
            for uuid, files, held in session.execute(
                select(device.uuid, device.cache_files, device.cache_bytes).where(device.cache_files.is_not(None))
            )
        },
        schedules_late_s=_seconds(session, select(late).where(schedule.enabled)),
        fire_delay_s=_seconds(
            session, select(delay).where(fire.created_at > func.now() - FIRES_OF, fire.manual.is_(False))
        ),
        deliveries=_by_one(session, select(delivery.state, func.count()).group_by(delivery.state)),
        demand=session.scalar(select(func.count()).select_from(models.Demand)) or 0,
        database_bytes=session.scalar(select(func.pg_database_size(func.current_database()))) or 0,
    )


def _workers(session: Session) -> dict[tuple[str, str], int]:
    """Devices that a worker has registered, counted by model and by the worker's state."""
    device, counts = models.Device, dict[tuple[str, str], int]()
    silence = func.extract("epoch", func.now() - device.heartbeat_at)
    rows = session.execute(
        select(models.DeviceModel.slug, device.state, silence)
        .join(models.DeviceModel, device.model_id == models.DeviceModel.id)
        .where(device.worker.is_not(None))
    )
    for slug, state, silent_s in rows:
        is_silent = silent_s > settings().stalled_after_s
        how = "silent" if is_silent else "lost" if state is models.DeviceState.LOST else "alive"
        counts[slug, how] = counts.get((slug, how), 0) + 1
    return counts


def _by_one(session: Session, query: Select[Any, int]) -> dict[str, int]:
    return {str(name): count for name, count in session.execute(query)}


def _by_two(session: Session, query: Select[Any, Any, int]) -> dict[tuple[str, str], int]:
    return {(str(first), str(second)): count for first, second, count in session.execute(query)}


def _seconds(session: Session, query: Select[Any]) -> float:
    return max(0.0, float(session.scalar(query) or 0.0))
