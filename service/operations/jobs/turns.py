"""The order of a queue: by priority, and in it the keys take turns.

Each job gets a turn when it is queued (start-time fair queueing, Goyal et al. 1996): the one after its key's last open
job's, and not before the turn that is being run now. Of two keys the one with a thousand jobs waiting and the one with
its first are thus served alternately, and equal turns go by arrival. While several projects have open jobs for a device
model, a key's jobs are as many turns apart as its project has keys with such jobs, so that ten keys of one project get
no more than the single key of another. What is queued already keeps its turn when a further key or project comes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, String, case, cast, func, select

from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.store import models
from tilewright.service.store.models import JobState

TURNS = 200_000_000
"""More than there are turns before a queue is empty for once; ten priorities of so many fit the engine's integer."""


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
    first, after_own = func.coalesce(running, waiting, 0), func.coalesce(own + 1, 0)
    return (
        select((func.greatest(first, after_own) + between).label("turn"))
        .select_from(job)
        .outerjoin(schedule, schedule.id == job.schedule_id)
        .where(job.state.in_(OPEN), job.device_model_id == device_model_id)
    )


def engine_priority(priority: Any, turn: Any) -> Any:
    """The priority of a job's entry in the engine, which serves the highest first and equal ones by arrival.

    Of numbers or of columns.
    """
    return priority * TURNS - turn % TURNS
