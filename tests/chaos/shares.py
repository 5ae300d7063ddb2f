"""Whether each key kept within its share, asked of the database's rows; each breach is a sentence."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import groupby

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from chaos.load import QUOTAS
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.settings import settings
from tilewright.service.store import models

BEFORE = 3
"""Jobs of another key that may begin while a job waits, beyond one for each job of its own key that does. The turn of a
new job is that of the jobs which are running or the next one, and a device that is just free may take a job first."""
AT_ONCE = 3
"""Processes that fire schedules: each may be firing one of the same key when the minute's last fire is due."""

_OWNER = func.coalesce(models.TuningJob.key_id, models.Schedule.key_id)


def of_open_jobs(session: Session) -> list[str]:
    """Keys with more open jobs than their quota, at this moment."""
    query = select(models.ApiKey.name, func.count()).where(models.TuningJob.state.in_(OPEN))
    counts = dict(session.execute(_with_owner(query).group_by(models.ApiKey.name)).all())
    return [
        f"{name} has {counts[name]} open jobs, of {most}" for name, most in QUOTAS.items() if counts.get(name, 0) > most
    ]


def most_begun_before(session: Session) -> tuple[int, str]:
    """How many jobs of one other key began at most while a job waited, less those of its own key; and of which job."""
    job = models.TuningJob
    query = select(models.ApiKey.name, job.created_at, job.started_at, job.id).where(job.started_at.is_not(None))
    rows = session.execute(_with_owner(query)).all()
    most = (0, "")
    for name, created_at, started_at, job_id in rows:
        begun = Counter(other for other, _, at, its_id in rows if created_at <= at < started_at and its_id != job_id)
        own = begun.pop(name, 0)
        for other, count in begun.items():
            said = f"{count} jobs of {other} and {own} of its own began while job {job_id} of {name} waited"
            most = max(most, (count - own, said))
    return most


def begun_by_key(session: Session) -> dict[str, int]:
    """Jobs that began, by key."""
    query = select(models.ApiKey.name, func.count()).where(models.TuningJob.started_at.is_not(None))
    return dict(session.execute(_with_owner(query).group_by(models.ApiKey.name).order_by(models.ApiKey.name)).all())


def most_fires_a_minute(session: Session) -> dict[str, int]:
    """Fires of each key's schedules in its busiest minute."""
    fire, schedule, key = models.ScheduleFire, models.Schedule, models.ApiKey
    rows = session.execute(
        select(key.name, fire.created_at)
        .join(schedule, schedule.id == fire.schedule_id)
        .join(key, key.id == schedule.key_id)
        .order_by(key.name, fire.created_at)
    ).all()
    found = {}
    for name, of_key in groupby(rows, key=lambda row: row[0]):
        times = [created_at for _, created_at in of_key]
        first, most = 0, 0
        for count, at in enumerate(times, 1):
            while times[first] <= at - timedelta(minutes=1):
                first += 1
            most = max(most, count - first)
        found[name] = most
    return found


def of_all(session: Session) -> list[str]:
    """Of turns and fires, in the end."""
    beyond, said = most_begun_before(session)
    limit = settings().fires_per_minute
    return [said] * (beyond > BEFORE) + [
        f"the schedules of {name} fired {count} times in a minute, of {limit}"
        for name, count in most_fires_a_minute(session).items()
        if count > limit + AT_ONCE
    ]


def _with_owner(query):
    """The query joined with the key that asked for the job, or made its schedule."""
    return (
        query.select_from(models.TuningJob)
        .outerjoin(models.Schedule, models.Schedule.id == models.TuningJob.schedule_id)
        .join(models.ApiKey, models.ApiKey.id == _OWNER)
    )
