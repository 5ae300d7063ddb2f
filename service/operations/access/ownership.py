"""Owners of jobs, schedules and results: the name of the key that created them, so that a rotated key keeps them."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.service.errors import NotOwnerError
from tilewright.service.operations.caller import Scope, acting
from tilewright.service.store import models


def check_owner(session: Session, what: str, key_id: UUID | None, *, is_shared: bool = True) -> None:
    """Raises NotOwnerError where another key than the caller's created it, and the caller is not an admin.

    What was created without a key, or before there were owners, every caller may change whose scope allows changes, if
    it is `is_shared`; else only an admin may.
    """
    who = acting()
    if who is None or who.caller.scope is Scope.ADMIN or (key_id is None and is_shared):
        return
    owner = session.scalar(select(models.ApiKey.name).where(models.ApiKey.id == key_id))
    if owner is None:
        raise NotOwnerError(f"The {what} belongs to no key; only one of scope admin may change it.")
    if owner != who.caller.key_name:
        raise NotOwnerError(f"The {what} belongs to the key {owner!r}; change it with that key or one of scope admin.")


def owner_of_job(session: Session, job_id: UUID | None) -> UUID | None:
    """The key that asked for the job; a schedule's jobs belong to who made it."""
    job, schedule = models.TuningJob, models.Schedule
    owner = select(func.coalesce(job.key_id, schedule.key_id)).select_from(job)
    return session.scalar(owner.outerjoin(schedule, schedule.id == job.schedule_id).where(job.id == job_id))
