"""Failed trials that are tried again: noted as given up, and a job that begins with their configurations."""

from __future__ import annotations

import uuid

from sqlalchemy import ColumnElement, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.errors import ConflictError, NotFoundError
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs.record_trial import is_given_up
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

FAILED = tuple(o for o in Outcome if o not in {Outcome.MEASURED, Outcome.WRONG_RESULT, Outcome.CONSTRAINT_VIOLATED})
"""Outcomes that may be another one the next time. A wrong result is wrong; it is tried again where it is named."""

MOST_RETRIES = 1000


def retry_trials(session: Session, job_id: uuid.UUID, number: int | None = None) -> JobAnswer:
    """The job that tries the failed trials of that job's study again, or the one of that number.

    Raises NotFoundError, ConflictError where there is nothing to try again, and what `request_job` does.
    """
    _, row = jobs.job_at_revision(session, job_id)
    trial = models.Trial
    chosen: ColumnElement[bool] = trial.outcome.in_(FAILED) if number is None else trial.number == number
    trials = session.scalars(
        select(trial).where(trial.study_id == row.study_id, chosen, ~is_given_up()).order_by(trial.number)
    ).all()[:MOST_RETRIES]
    if number is not None and not trials:
        raise NotFoundError("trial", str(number))
    trials = [one for one in trials if one.outcome is not Outcome.MEASURED]
    again = [one for one in _interrupted(session, row.study_id) if number is None] + trials
    if not again:
        raise ConflictError("No trial of this study has failed; there is nothing to try again.")
    if trials:
        marks = [{"trial_id": one.id} for one in trials]
        session.execute(insert(models.TrialRetry).values(marks).on_conflict_do_nothing())
    problem, device_model = row.problem, row.device_model
    answer, _ = request_job(
        session,
        JobRequest(
            kernel=problem.kernel.name,
            shape=problem.shape,
            dtype=problem.dtype,
            options=problem.options,
            device_model=device_model.slug if device_model else None,
            budget=BudgetRequest(trials=len(again)),
            variants=row.variants,
            compiler=row.compiler,
        ),
    )
    starts = list({str(one.configuration): one.configuration for one in again}.values())
    session.get_one(models.TuningJob, answer.id, with_for_update=True).starts = starts
    session.flush()
    return jobs.job(session, answer.id)


def _interrupted(session: Session, study_id: int | None) -> list[models.Trial]:
    """The trials of the study that the surroundings interrupted and nobody has tried since."""
    trial = models.Trial
    rows = session.scalars(
        select(trial).where(trial.study_id == study_id, trial.outcome == Outcome.INTERRUPTED).order_by(trial.number)
    ).all()
    tried = select(trial.configuration).where(trial.study_id == study_id, ~is_given_up())
    known = {str(configuration) for configuration in session.scalars(tried)}
    return [row for row in rows if str(row.configuration) not in known][:MOST_RETRIES]
