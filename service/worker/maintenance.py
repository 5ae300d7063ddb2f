"""Maintenance chores, in a thread of every API and worker; one process at a time does them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from procrastinate.sql import queries
from psycopg.rows import dict_row
from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.fleet import fleet, retention
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.operations.schedules import firing
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.webhooks import deliveries
from tilewright.service.operations.webhooks.webhooks import announce
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.embedded import EmbeddedPostgresError
from tilewright.service.store.engine_queue import TUNE, enqueue
from tilewright.service.store.models import JobState
from tilewright.service.store.session import revive, session_scope
from tilewright.service.worker.background import Background
from tilewright.service.worker.engine import DUE
from tilewright.service.worker.silence import is_database_new, is_starved

logger = logging.getLogger(__name__)

CHORE_LOCK = 0x63686F72
"""Advisory lock ("chor" in ASCII), so that two processes do not requeue the same stalled job."""
LONGEST_PAUSE_S = 5.0
IN_TIME = 0.9
"""Part of the pause after which a round counts as due: the process that began the last one finds its own next due."""
LOOK_EVERY_S = 0.5
"""How soon a new, resumed or abandoned schedule is noticed; a known one fires on its second."""
LOOKING = 10
"""The workers that each look that often; with more, each looks less often, so that the fleet's total stays."""
TAKEN_S = 0.1
"""How soon to look again when another process is firing what is due."""
REPEATED_S = 1.0
"""How long a chore is repeated, in short transactions, that has more to do."""

Chore = Callable[[Session], bool | None]
"""True: there is more of it to do."""


def recover_stalled(session: Session) -> None:
    """Queues the jobs of silent workers again; those that were being cancelled are cancelled."""
    if is_database_new(session):
        return
    for entry in _engine_rows(
        session,
        "select_stalled_jobs_by_heartbeat",
        seconds_since_heartbeat=settings().stalled_after_s,
        queue=None,
        task_name=TUNE,
    ):
        its = models.TuningJob.engine_id == entry["id"]
        job = session.scalars(select(models.TuningJob).where(its).with_for_update(skip_locked=True)).one_or_none()
        if job is None and session.scalar(select(models.TuningJob.id).where(its)) is not None:
            continue  # locked by a process that may hang in its transaction; this chore must not wait for it
        if job is not None and is_starved(session, job, entry["worker_id"]):
            continue
        logger.warning("Job %s was left by a silent worker; it is queued again.", entry["args"].get("job_id"))
        if job is not None and job.state is JobState.RUNNING and job.cancel_requested:
            job.state, job.phase, job.finished_at = JobState.CANCELLED, "finished", func.now()
            job.revision = job.state_revision = job.revision + 1
            job.epoch += 1  # fences the silent worker, should it wake
            session.flush()
            announce(session, job.id)
        _engine_rows(
            session,
            "retry_job",
            job_id=entry["id"],
            retry_at=DUE,
            new_priority=None,
            new_queue_name=None,
            new_lock=None,
        )


def enqueue_forgotten(session: Session) -> None:
    """Enqueues open jobs again that the engine does not know (a restored backup, an entry removed by hand)."""
    # One statement and one moment: an entry that is made meanwhile cannot be missing where its job is seen.
    is_unknown = text(
        "NOT EXISTS (SELECT FROM procrastinate_jobs entry"
        " WHERE entry.id = tuning_jobs.engine_id AND entry.status IN ('todo', 'doing'))"
    )
    forgotten = session.scalars(
        select(models.TuningJob)
        .where(models.TuningJob.state.in_([JobState.QUEUED, JobState.RUNNING]), is_unknown)
        .with_for_update(skip_locked=True)
    )
    for job in forgotten:
        logger.warning("Job %s has no entry in the engine; it gets a new one.", job.id)
        job.engine_id = enqueue(session, job.id, job.queue, engine_priority(job.priority, job.turn))


CHORES: tuple[Chore, ...] = (
    recover_stalled,
    enqueue_forgotten,
    firing.forget_old_fires,
    firing.bring_back,
    deliveries.forget_old_deliveries,
    retention.forget_samples,
    retention.forget_old_keys,
    staleness_comparisons.settle,
)
"""Each runs in a transaction of its own. Add here what else must happen from time to time."""


def do_chores(chores: tuple[Chore, ...] = CHORES) -> bool:
    """Does the chores; False where another process is doing them. Raises DatabaseUnavailableError."""
    for chore in chores:
        until_s, more = time.monotonic() + REPEATED_S, True
        while more:
            with session_scope() as session:
                if not session.scalar(select(func.pg_try_advisory_xact_lock(CHORE_LOCK))):
                    return False
                more = bool(chore(session)) and time.monotonic() < until_s
    return True


def begin_round(every_s: float) -> bool:
    """Begins a round of chores, and tells whether it did: only if no process has begun one for so long.

    Without it hundreds of workers would each go through all chores as often as one does.
    """
    row = models.ChoreRound
    is_due = row.begun_at <= func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, every_s)
    with session_scope() as session:
        due = session.scalars(select(row).where(is_due).with_for_update(skip_locked=True)).one_or_none()
        if due is not None:
            due.begun_at = func.clock_timestamp()
        return due is not None


def fire_schedules(look_s: float = LOOK_EVERY_S) -> float:
    """Fires due schedules; seconds until the next look, `look_s` at most. Raises DatabaseUnavailableError.

    Every process does this at the same moment: rows that one has locked are skipped by the others.
    """
    with session_scope() as session:
        left_s = firing.seconds_until_due(session)
        if left_s <= 0:
            left_s = 0.0 if firing.fire_due(session) else TAKEN_S
    return min(left_s, look_s)


def look_every_s(workers: int) -> float:
    """The seconds between looks for due times by a process of a fleet of so many workers."""
    return LOOK_EVERY_S * max(1.0, workers / LOOKING)


class Maintenance(Background):
    """Fires schedules on time and does the chores, from `start` (or `with`) to `stop`."""

    def __init__(self, pause_s: float | None = None) -> None:
        super().__init__("maintenance", LONGEST_PAUSE_S)
        self.pause_s = min(LONGEST_PAUSE_S, settings().stalled_after_s / 4) if pause_s is None else pause_s

    def _work(self) -> None:
        wait_s, chores_s, look_s = 0.0, time.monotonic() + self.pause_s, LOOK_EVERY_S
        while not self._stopping.wait(wait_s):
            try:
                wait_s = min(fire_schedules(look_s), self.pause_s)
                if time.monotonic() >= chores_s:
                    with session_scope() as session:
                        look_s = look_every_s(fleet.workers_alive(session))
                    if begin_round(self.pause_s * IN_TIME):
                        do_chores()
                    chores_s = time.monotonic() + self.pause_s
            except DatabaseUnavailableError as error:
                logger.warning("Maintenance cannot run now. %s", error)
                self._revive()
                wait_s = LOOK_EVERY_S
            except SQLAlchemyError:
                # Tables of another version, or a lock lost because this process hung: neither may end the loop.
                logger.exception("Maintenance failed; it is tried again.")
                wait_s = self.pause_s

    def _revive(self) -> None:
        try:
            revive()
        except EmbeddedPostgresError as error:
            logger.warning("The embedded database does not start: %s", error)


def _engine_rows(session: Session, query: str, **arguments: Any) -> list[dict[str, Any]]:
    """Rows of one of the engine's own queries, run in our transaction."""
    connection = session.connection().connection.driver_connection
    assert connection is not None  # noqa: S101 - it was just used
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(cursor.execute(queries[query], arguments))
