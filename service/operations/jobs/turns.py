"""The order of a queue: by priority, and in it the keys take turns.

Each job gets a turn when it is queued (start-time fair queueing, Goyal et al. 1996): the one after its key's last
job's, and not before the turn that is being run now. A job that began and has ended counts while one that was there
with it is open still: else a key that asks again whenever it was served would always come first. Of two keys the one
with a thousand jobs waiting and the one with its first are thus served alternately, and equal turns go by arrival.
While several projects have open jobs for a device model, a key's jobs are as many turns apart as its project has keys
with such jobs, so that ten keys of one project get no more than the single key of another. Queued jobs keep their turns
when a further key or project comes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import ScalarSelect, Select, String, case, cast, func, select
from sqlalchemy.orm import aliased

from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.store import models
from tilewright.service.store.models import JobState

TURNS = 200_000_000
"""More than there are turns before a queue is empty for once; ten priorities of so many fit the engine's integer."""


AN_HOUR = timedelta(hours=1)
"""A job that ended longer ago does not count: where jobs wait for days, there may be any number of such."""


def next_turn(device_model_id: Any, key_id: Any, project_id: Any) -> Select[tuple[int]]:
    """The query for the `turn` of a new job of that key, or of its schedule, among the open ones for the model."""
    job, schedule = models.TuningJob, models.Schedule
    owner = func.coalesce(job.key_id, schedule.key_id)
    own = func.max(job.turn).filter(owner.is_not_distinct_from(key_id))
    running = func.max(job.turn).filter(job.state == JobState.RUNNING)
    waiting = func.min(job.turn).filter(job.state == JobState.QUEUED)
    beside = case((job.project_id == project_id, func.coalesce(cast(owner, String), "")))  # keys of the project
    is_another = beside.is_not(None) & owner.is_distinct_from(key_id)
    others = func.count(beside.distinct()).filter(is_another)
    between = case((func.count().filter(job.project_id != project_id) > 0, others), else_=0)
    ended = _last_ended(device_model_id, key_id)
    first, after_own = func.coalesce(running, waiting, 0), func.coalesce(func.greatest(own, ended) + 1, 0)
    return (
        select((func.greatest(first, after_own) + between).label("turn"))
        .select_from(job)
        .outerjoin(schedule, schedule.id == job.schedule_id)
        .where(job.state.in_(OPEN), job.device_model_id == device_model_id)
    )


def _last_ended(device_model_id: Any, key_id: Any) -> ScalarSelect[int]:
    """The highest turn of the key's started jobs that have ended since the model's oldest open job was queued."""
    job, schedule, waiting = aliased(models.TuningJob), aliased(models.Schedule), aliased(models.TuningJob)
    oldest = select(func.min(waiting.created_at)).where(
        waiting.state.in_(OPEN), waiting.device_model_id == device_model_id
    )
    return (
        select(func.max(job.turn))
        .select_from(job)
        .outerjoin(schedule, schedule.id == job.schedule_id)
        .where(
            job.samples_pruned_at.is_(None),  # as the index on finished_at has them
            job.started_at.is_not(None),  # one that was cancelled before it began has used no turn
            job.finished_at >= func.greatest(oldest.scalar_subquery(), func.now() - AN_HOUR),
            job.device_model_id == device_model_id,
            func.coalesce(job.key_id, schedule.key_id).is_not_distinct_from(key_id),
        )
        .scalar_subquery()
    )


def engine_priority(priority: Any, turn: Any) -> Any:
    """The priority of a job's entry in the engine, which serves the highest first and equal ones by arrival.

    Both arguments are numbers, or both are columns.
    """
    return priority * TURNS - turn % TURNS
