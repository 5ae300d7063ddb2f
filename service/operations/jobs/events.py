"""A job's events: derived from its rows and numbered, so that a listener can resume anywhere."""

from __future__ import annotations

import uuid
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import Answer
from tilewright.service.operations.jobs.jobs import OPEN, job_at_revision, trial_answer
from tilewright.service.store import models

BATCH = 500
"""Most events of one answer; a listener that resumes far behind gets several answers."""


class JobEvent(Answer):
    """One event. `data` is a TrialAnswer (`trial`) or a JobAnswer (`state`) as JSON; ids grow, and may skip."""

    event: Literal["trial", "state"]
    id: int
    data: dict[str, Any]

    @property
    def is_last(self) -> bool:
        """Whether no other event can follow."""
        return self.event == "state" and self.data["state"] not in {state.value for state in OPEN}


def events_after(session: Session, job_id: uuid.UUID, after: int) -> list[JobEvent]:
    """The events with an id above `after`, in order: every trial, and the newest state if it changed.

    The state comes last, so that a listener that has seen a finished state has seen everything. Raises NotFoundError.
    """
    # Read once and first: every trial up to this revision is there, so a finished state has no trial missing.
    answer, row = job_at_revision(session, job_id)
    trials = session.scalars(
        select(models.Trial)
        .where(models.Trial.job_id == job_id, models.Trial.job_revision > after)
        .order_by(models.Trial.job_revision)
        .limit(BATCH)
    ).all()
    events = [
        JobEvent(event="trial", id=trial.job_revision, data=trial_answer(trial).model_dump(mode="json"))
        for trial in trials
        if trial.job_revision <= row.revision  # a later one was added between the two reads: next time
    ]
    if row.state_revision > after and len(trials) < BATCH:
        events.append(JobEvent(event="state", id=row.revision, data=answer.model_dump(mode="json")))
    return events
