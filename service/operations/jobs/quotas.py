"""Quotas of the keys of one name, so that no caller keeps the others out.

Keys of scope admin and callers without a key have no quotas, but for a `max_open_jobs` of their own. The jobs of a
key's schedules count as its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Float, Subquery, cast, func, select
from sqlalchemy.orm import Session, aliased

from tilewright.service.errors import CeilingError
from tilewright.service.operations.caller import Caller, Scope, acting
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.settings import settings
from tilewright.service.store import models

SECONDS_OF_A_TRIAL = 2.0
"""Seconds that a trial counts for where a job has no time limit; without a limit of trials too, the most allowed."""
MINUTE = timedelta(minutes=1)


def check_new_job(session: Session, budget_trials: int | None, budget_seconds: float | None) -> None:
    """Raises CeilingError where the caller's key may not have one more job of this budget open."""
    who = acting()
    if who is None or who.caller.key_name is None:
        return
    most = _most_open_jobs(who.caller.scope, who.caller.ceilings.max_open_jobs)
    if most is None:
        return
    keys = _locked_keys(session, who.caller)
    open_jobs, seconds = occupied(session, keys)
    if open_jobs >= most:
        raise CeilingError(f"This key may have {most} jobs queued or running; wait until one ends, or cancel one.")
    most_s, its_s = settings().queued_seconds_per_key, _seconds(budget_trials, budget_seconds)
    if who.caller.scope is not Scope.ADMIN and open_jobs and seconds + its_s > most_s:
        raise CeilingError(
            f"The open jobs of this key may take {most_s:g} s together; they take up to {seconds:g} s, and this one "
            f"{its_s:g} s. Wait until one ends, or request less."
        )


def check_new_schedule(session: Session) -> None:
    """Raises CeilingError where the caller's key has as many schedules as it may."""
    who = acting()
    if who is None or who.caller.key_name is None or who.caller.scope is Scope.ADMIN:
        return
    keys, most = _locked_keys(session, who.caller), settings().schedules_per_key
    if (session.scalar(select(func.count()).where(models.Schedule.key_id.in_(keys))) or 0) >= most:
        raise CeilingError(f"This key may have {most} schedules; delete one first.")


def obstacle_to_fire(session: Session, key_id: UUID | None, count: int) -> str | None:
    """Why the schedule of that key may not add `count` jobs now, in a sentence."""
    key = None if key_id is None else session.get_one(models.ApiKey, key_id)
    most = None if key is None else _most_open_jobs(Scope(key.scope), key.max_open_jobs)
    if key is None or most is None:
        return None
    open_jobs, _ = occupied(
        session, session.scalars(select(models.ApiKey.id).where(models.ApiKey.name == key.name)).all()
    )
    if open_jobs + count > most:
        return f"Skipped: {open_jobs} jobs of the key {key.name!r} are open, and at most {most} may be at a time."
    return None


def recent_fires() -> Subquery:
    """How often the schedules of the keys of each name fired, or were skipped, in the last minute: `name`, `fires`."""
    fire, schedule, key = models.ScheduleFire, aliased(models.Schedule), aliased(models.ApiKey)
    return (
        select(key.name.label("name"), func.count().label("fires"))
        .select_from(fire)
        .join(schedule, schedule.id == fire.schedule_id)
        .join(key, key.id == schedule.key_id)
        .where(fire.created_at > func.clock_timestamp() - MINUTE)
        .group_by(key.name)
        .subquery()
    )


def occupied(session: Session, keys: Sequence[UUID]) -> tuple[int, float]:
    """The open jobs of these keys and of their schedules, and the seconds that they may take together."""
    job, schedule, longest_s = models.TuningJob, models.Schedule, settings().max_seconds
    of_trials = cast(job.budget_trials, Float) * SECONDS_OF_A_TRIAL
    seconds = func.least(func.coalesce(job.budget_seconds, of_trials, longest_s), longest_s)
    owner = func.coalesce(job.key_id, schedule.key_id)
    row = session.execute(
        select(func.count(), func.coalesce(func.sum(seconds), 0.0))
        .select_from(job)
        .outerjoin(schedule, schedule.id == job.schedule_id)
        .where(job.state.in_(OPEN), owner.in_(keys))
    ).one()
    return row[0], row[1]


def _seconds(trials: int | None, seconds: float | None) -> float:
    longest_s = settings().max_seconds
    of_trials = longest_s if trials is None else trials * SECONDS_OF_A_TRIAL
    return min(longest_s, of_trials if seconds is None else seconds)


def _most_open_jobs(scope: Scope, own: int | None) -> int | None:
    return settings().open_jobs_per_key if own is None and scope is not Scope.ADMIN else own


def _locked_keys(session: Session, caller: Caller) -> Sequence[UUID]:
    """All keys of the caller's name, since it may have been rotated; locked, so that its requests take turns."""
    key = models.ApiKey
    same = select(key.id).where(key.name == caller.key_name).order_by(key.id)
    return session.scalars(same.with_for_update(key_share=True)).all()
