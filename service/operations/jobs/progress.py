"""The life of a job as its worker writes it: taken, under way, handed back, ended. Every write is fenced by epoch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal, select, update
from sqlalchemy.orm import Session

from tilewright.service.errors import FencedError
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.webhooks.webhooks import announce
from tilewright.service.store import models
from tilewright.service.store.models import JobState

MAX_DEVICES_LOST = 2
"""A job under which so many devices stopped answering fails, before it takes the rest of the fleet with it."""

MAX_CRASHES = 5
"""Starts in a row that may die without a recorded trial before a job is given up."""


@dataclass(frozen=True)
class JobRevision:
    """Where a job's row stands after a write: its newest event, and whether its caller wants it stopped."""

    revision: int
    cancel_requested: bool


@dataclass(frozen=True)
class BudgetSpent:
    """What a job has used up of its budget in the study that it adds to now."""

    trials: int
    seconds: float


def take_job(session: Session, job_id: uuid.UUID, engine_id: int, worker: str) -> int | None:
    """The new epoch, with which this worker alone may write; None where there is nothing to do.

    That is a job that ended, that was cancelled (it ends here), or an engine entry that another has replaced. A job
    that is still `running` was left by a worker that died: that counts as a crash, and too many of them end it.
    """
    table = models.TuningJob
    row = session.get(table, job_id, with_for_update=True, populate_existing=True)
    if row is None or row.state not in OPEN or row.engine_id != engine_id:
        return None
    row.epoch += 1
    row.worker = worker
    row.revision = row.state_revision = row.revision + 1
    row.started_at = row.started_at or func.now()
    if row.state is JobState.RUNNING:
        row.crashes += 1
    if row.cancel_requested:
        row.state, row.phase, row.finished_at = JobState.CANCELLED, "finished", func.now()
    elif row.crashes >= MAX_CRASHES:
        row.state, row.phase, row.finished_at = JobState.FAILED, "finished", func.now()
        row.error = row.error or f"Its worker died {row.crashes} times in a row."
    else:
        row.state, row.phase, row.error = JobState.RUNNING, "preparing", None
    session.flush()
    if row.state is JobState.RUNNING:
        return row.epoch
    announce(session, job_id)
    return None


def begin_study(session: Session, job_id: uuid.UUID, epoch: int, study_id: int) -> BudgetSpent:
    """What the job has spent in the study that it adds to from now on; raises FencedError.

    In another study than before (another compiler, driver or shim: its times do not compare with the old ones) the
    job has its whole budget, less what it spent there at an earlier time. The old study keeps its trials.
    """
    job, trial = models.TuningJob, models.Trial
    before, done, elapsed_s = session.execute(
        select(job.study_id, job.trials_done, job.elapsed_s).where(job.id == job_id).with_for_update()
    ).one()
    if before not in {None, study_id}:
        done, elapsed_s = session.execute(
            select(func.count(), func.coalesce(func.sum(trial.wall_s), 0.0)).where(
                trial.job_id == job_id, trial.study_id == study_id
            )
        ).one()
    _change(session, job_id, epoch, study_id=study_id, trials_done=done, elapsed_s=elapsed_s)
    return BudgetSpent(done, elapsed_s)


def set_phase(session: Session, job_id: uuid.UUID, epoch: int, phase: str) -> JobRevision:
    """Notes what the job is doing now; raises FencedError."""
    return _change(session, job_id, epoch, phase=phase)


def count_trial(session: Session, job_id: uuid.UUID, epoch: int, done: int, elapsed_s: float) -> JobRevision:
    """Notes that `done` trials of this job have ended after `elapsed_s`; saying it twice changes nothing more."""
    table = models.TuningJob
    values = {
        "trials_done": func.greatest(table.trials_done, done),
        "elapsed_s": func.greatest(table.elapsed_s, elapsed_s),
        "crashes": 0,
        "phase": "searching",
        "revision": table.revision + 1,
        "state_revision": case((table.phase == "searching", table.state_revision), else_=table.revision + 1),
    }
    return _fenced(session, job_id, epoch, values)


def hand_back(session: Session, job_id: uuid.UUID, epoch: int) -> JobRevision:
    """The job waits in the queue again, nothing lost: its worker was asked to stop. Raises FencedError."""
    return _change(session, job_id, epoch, state=JobState.QUEUED, phase="queued", worker=None)


def note_crash(session: Session, job_id: uuid.UUID, epoch: int, error: str, *, repeat: bool = True) -> bool:
    """Whether the job is tried again; else it has failed with the error. Raises FencedError.

    Not `repeat`: it would end in the same way.
    """
    table = models.TuningJob
    again = and_(literal(repeat), table.crashes + 1 < MAX_CRASHES)
    _change(
        session,
        job_id,
        epoch,
        crashes=table.crashes + 1,
        error=error,
        **_queued_or_failed(again),
    )
    return _waits_again(session, job_id)


def note_lost_device(session: Session, job_id: uuid.UUID, epoch: int, device: str) -> bool:
    """Whether the job goes back to its queue, for another device; else it has failed. Raises FencedError."""
    table = models.TuningJob
    again = table.devices_lost + 1 < MAX_DEVICES_LOST
    _change(
        session,
        job_id,
        epoch,
        devices_lost=table.devices_lost + 1,
        error=f"The device {device} stopped answering under it.",
        worker=case((again, None), else_=table.worker),
        **_queued_or_failed(again),
    )
    return _waits_again(session, job_id)


def end_job(
    session: Session,
    job_id: uuid.UUID,
    epoch: int,
    state: JobState,
    *,
    result: dict[str, Any] | None = None,
    error: str | None = None,
) -> JobRevision:
    """The job is over, with what came of it; raises FencedError."""
    standing = _change(
        session,
        job_id,
        epoch,
        state=state,
        phase="finished",
        finished_at=func.now(),
        result=result,
        error=error,
    )
    announce(session, job_id)
    return standing


def _queued_or_failed(again: ColumnElement[bool]) -> dict[str, Any]:
    """The columns of a job that waits in its queue `again`, or else has failed."""
    return {
        "state": case((again, JobState.QUEUED), else_=JobState.FAILED),
        "phase": case((again, "queued"), else_="finished"),
        "finished_at": case((again, None), else_=func.now()),
    }


def _waits_again(session: Session, job_id: uuid.UUID) -> bool:
    announce(session, job_id)
    return session.get_one(models.TuningJob, job_id, populate_existing=True).state is JobState.QUEUED


def _change(session: Session, job_id: uuid.UUID, epoch: int, **values: Any) -> JobRevision:
    revision = models.TuningJob.revision + 1
    return _fenced(session, job_id, epoch, {**values, "revision": revision, "state_revision": revision})


def _fenced(session: Session, job_id: uuid.UUID, epoch: int, values: dict[str, Any]) -> JobRevision:
    table = models.TuningJob
    row = session.execute(
        update(table)
        .where(table.id == job_id, table.epoch == epoch, table.state == JobState.RUNNING)
        .values(**values)
        .returning(table.revision, table.cancel_requested)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is None:
        raise FencedError(f"Job {job_id} is no longer this worker's (epoch {epoch}).")
    return JobRevision(*row)
