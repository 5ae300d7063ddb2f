"""Quotas of the keys of one name, so that no caller keeps the others out.

Keys of scope admin and callers without a key have no quotas, but for a `max_open_jobs` of their own. The jobs of a
key's schedules count as its own. Where a project has a quota, its keys have that one together, in place of the
settings' for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Float, Subquery, cast, func, select
from sqlalchemy.orm import Session, aliased, joinedload

from tilewright.service.errors import CeilingError
from tilewright.service.operations.caller import Scope, acting
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.settings import settings
from tilewright.service.store import models

SECONDS_OF_A_TRIAL = 2.0
"""Seconds that a trial counts for where a job has no time limit; without a limit of trials too, the most allowed."""
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Share:
    """A limit of jobs and schedules that count together; None: no limit."""

    whose: str  # "the key 'ci'"
    jobs: ColumnElement[bool]
    schedules: ColumnElement[bool]
    max_open_jobs: int | None = None
    max_queued_seconds: float | None = None
    max_schedules: int | None = None


def check_new_job(session: Session, budget_trials: int | None, budget_seconds: float | None) -> None:
    """Raises CeilingError where the caller's key or its project may not have one more job of this budget open."""
    for share in _shares_of_caller(session):
        if share.max_open_jobs is None and share.max_queued_seconds is None:
            continue
        open_jobs, seconds = occupied(session, share.jobs)
        most, most_s = share.max_open_jobs, share.max_queued_seconds
        if most is not None and open_jobs >= most:
            raise CeilingError(
                f"{_capital(share.whose)} may have {most} jobs queued or running; wait until one ends, or cancel one."
            )
        its_s = _seconds(budget_trials, budget_seconds)
        if most_s is not None and open_jobs and seconds + its_s > most_s:
            raise CeilingError(
                f"The open jobs of {share.whose} may take {most_s:g} s together; they take up to {seconds:g} s, and "
                f"this one {its_s:g} s. Wait until one ends, or request less."
            )


def check_new_schedule(session: Session) -> None:
    """Raises CeilingError where the caller's key or its project has as many schedules as it may."""
    for share in _shares_of_caller(session):
        most = share.max_schedules
        if most is not None and (session.scalar(select(func.count()).where(share.schedules)) or 0) >= most:
            raise CeilingError(f"{_capital(share.whose)} may have {most} schedules; delete one first.")


def obstacle_to_fire(session: Session, key_id: UUID | None, count: int) -> str | None:
    """The reason, in a sentence, why the key's schedule may not add `count` jobs now."""
    if key_id is None:
        return None
    for share in _locked_shares(session, key_id):
        if share.max_open_jobs is None:
            continue
        open_jobs, _ = occupied(session, share.jobs)
        if open_jobs + count > share.max_open_jobs:
            most = share.max_open_jobs
            return f"Skipped: {open_jobs} jobs of {share.whose} are open, and at most {most} may be at a time."
    return None


def recent_fires() -> Subquery:
    """How often each name's schedules fired, or were skipped, in the last minute: `name`, `fires`.

    A minute before this transaction began, as what it writes is dated then: it may have been frozen since.
    """
    fire, schedule, key = models.ScheduleFire, aliased(models.Schedule), aliased(models.ApiKey)
    return (
        select(key.name.label("name"), func.count().label("fires"))
        .select_from(fire)
        .join(schedule, schedule.id == fire.schedule_id)
        .join(key, key.id == schedule.key_id)
        .where(fire.created_at > func.now() - MINUTE)
        .group_by(key.name)
        .subquery()
    )


def occupied(session: Session, whose: ColumnElement[bool]) -> tuple[int, float]:
    """The open jobs among `whose`, and the seconds that they may take together."""
    job, schedule, longest_s = models.TuningJob, models.Schedule, settings().max_seconds
    of_trials = cast(job.budget_trials, Float) * SECONDS_OF_A_TRIAL
    seconds = func.least(func.coalesce(job.budget_seconds, of_trials, longest_s), longest_s)
    row = session.execute(
        select(func.count(), func.coalesce(func.sum(seconds), 0.0))
        .select_from(job)
        .outerjoin(schedule, schedule.id == job.schedule_id)
        .where(job.state.in_(OPEN), whose)
    ).one()
    return row[0], row[1]


def _seconds(trials: int | None, seconds: float | None) -> float:
    longest_s = settings().max_seconds
    of_trials = longest_s if trials is None else trials * SECONDS_OF_A_TRIAL
    return min(longest_s, of_trials if seconds is None else seconds)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _shares_of_caller(session: Session) -> list[Share]:
    """The shares of the present caller in its quotas, locked; none for a caller without a key or limit."""
    who = acting()
    if who is None or who.caller.key_id is None:
        return []
    if who.caller.scope is Scope.ADMIN and who.caller.ceilings.max_open_jobs is None:
        return []
    return _locked_shares(session, who.caller.key_id)


def _locked_shares(session: Session, key_id: UUID) -> list[Share]:
    """A key's shares in quotas. The keys of its name, and a project with quotas, are locked: requests take turns."""
    table, loaded = models.ApiKey, [joinedload(models.ApiKey.project)]
    name = select(table.name).where(table.id == key_id).scalar_subquery()
    same = select(table.id).where(table.name == name).order_by(table.id)
    session.scalars(same.with_for_update(key_share=True)).all()
    key = session.get_one(table, key_id, options=loaded, populate_existing=True)
    shares = _shares(session, key)
    if len(shares) > 1:
        project = select(models.Project.id).where(models.Project.id == key.project_id)
        session.scalars(project.with_for_update(key_share=True)).all()
    return shares


def _shares(session: Session, key: models.ApiKey) -> list[Share]:
    """The share of all keys of its name, as it may have been rotated, and its project's, if that has a quota."""
    job, schedule, project, own = models.TuningJob, models.Schedule, key.project, settings()
    keys = session.scalars(select(models.ApiKey.id).where(models.ApiKey.name == key.name)).all()
    quotas = (project.max_open_jobs, project.max_queued_seconds, project.max_schedules)
    is_limited = Scope(key.scope) is not Scope.ADMIN
    jobs = own.open_jobs_per_key if is_limited and project.max_open_jobs is None else None
    seconds = own.queued_seconds_per_key if is_limited and project.max_queued_seconds is None else None
    schedules = own.schedules_per_key if is_limited and project.max_schedules is None else None
    owner = func.coalesce(job.key_id, schedule.key_id)
    ceiling = jobs if key.max_open_jobs is None else key.max_open_jobs
    whose = f"the key {key.name!r}"
    shares = [Share(whose, owner.in_(keys), schedule.key_id.in_(keys), ceiling, seconds, schedules)]
    if is_limited and any(quota is not None for quota in quotas):
        own_jobs, own_schedules = job.project_id == project.id, schedule.project_id == project.id
        shares.append(Share(f"the project {project.name!r}", own_jobs, own_schedules, *quotas))
    return shares
