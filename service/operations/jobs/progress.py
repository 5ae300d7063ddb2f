"""A worker's writes to its job: taken, under way, handed back, ended. Every write is fenced by the job's epoch."""

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
"""A job fails after so many devices have stopped answering under it, before it takes more of the fleet with it."""

MAX_CRASHES = 5
"""A job fails after so many starts in a row that died without recording a trial."""


@dataclass(frozen=True)
class JobRevision:
    """A job's row after a write: the number of its newest event, and whether it was asked to stop."""

    revision: int
    cancel_requested: bool


@dataclass(frozen=True)
class BudgetSpent:
    """The part of a job's budget that it has used in its present study."""

    trials: int
    seconds: float


def take_job(session: Session, job_id: uuid.UUID, engine_id: int, worker: str) -> int | None:
    """The new epoch, with which only this worker may write; None where there is nothing to do.

    There is nothing to do for a job that has ended or was cancelled (it ends here), and for an engine entry that was
    replaced. A job that is still `running` was left by a worker that died: a crash, and too many of them end it.
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
    """Sets the job's study; the budget that the job has spent there. Raises FencedError.

    In another study than before (another compiler, driver or shim, whose times cannot be compared) the job has its
    whole budget, less what it used there earlier. The old study keeps its trials.
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
    """Records the job's present phase; raises FencedError."""
    return _change(session, job_id, epoch, phase=phase)


def count_trial(
    session: Session, job_id: uuid.UUID, epoch: int, done: int, elapsed_s: float, *, kept: bool = True
) -> JobRevision:
    """Records that `done` trials of this job have ended after `elapsed_s`; calling it twice changes nothing more.

    `kept`: they are stored, so that a crash from here on is not one more of the same.
    """
    table = models.TuningJob
    values = {
        "trials_done": func.greatest(table.trials_done, done),
        "elapsed_s": func.greatest(table.elapsed_s, elapsed_s),
        "crashes": 0 if kept else table.crashes,
        "phase": "searching",
        "revision": table.revision + 1,
        "state_revision": case((table.phase == "searching", table.state_revision), else_=table.revision + 1),
    }
    return _fenced(session, job_id, epoch, values)


def hand_back(session: Session, job_id: uuid.UUID, epoch: int) -> JobRevision:
    """Puts the job back into the queue with its trials, because its worker was asked to stop; raises FencedError."""
    return _change(session, job_id, epoch, state=JobState.QUEUED, phase="queued", worker=None)


def note_crash(session: Session, job_id: uuid.UUID, epoch: int, error: str, *, repeat: bool = True) -> bool:
    """Records a crash. True: the job is queued again; False: it has failed with the error. Raises FencedError.

    `repeat` is false where another try would end in the same way.
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
    """Records a lost device. True: the job is queued again, for another device; False: it has failed.

    Raises FencedError.
    """
    table = models.TuningJob
    again = table.devices_lost + 1 < MAX_DEVICES_LOST
    _change(
        session,
        job_id,
        epoch,
        devices_lost=table.devices_lost + 1,
        error=f"The device {device} stopped answering during this job.",
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
    """Ends the job with its result or error; raises FencedError."""
    revision = _change(
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
    return revision


def _queued_or_failed(again: ColumnElement[bool]) -> dict[str, Any]:
    """The columns of a job that is queued `again`, or else has failed."""
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
