"""Schedules: created, listed, changed, paused, run now, deleted. When they fire is in `firing`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, select, true
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import ConflictError, InvalidRequestError, NotFoundError
from tilewright.service.operations.access.ownership import check_owner
from tilewright.service.operations.access.projects import project_id
from tilewright.service.operations.answers import FireAnswer, JobAnswer, Page, ScheduleAnswer, TunedFor
from tilewright.service.operations.caller import acting, acting_project_id
from tilewright.service.operations.jobs.jobs import OPEN, job
from tilewright.service.operations.jobs.quotas import check_new_schedule, obstacle_to_fire
from tilewright.service.operations.jobs.request import check_budget_ceilings
from tilewright.service.operations.pages import newest_first
from tilewright.service.operations.registry import tuned_for_answer
from tilewright.service.operations.requests import ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules.checks import check_schedule
from tilewright.service.operations.schedules.due_times import DueTimes
from tilewright.service.operations.schedules.firing import (
    MAX_OPEN_JOBS,
    fire_by_hand,
    fire_due,
    first_due,
    is_far_ahead,
)
from tilewright.service.store import models
from tilewright.service.store.forced import forced

__all__ = [
    "change_schedule",
    "create_schedule",
    "delete_schedule",
    "edit_schedule",
    "fire_due",
    "fires",
    "run_now",
    "schedule",
    "schedules",
    "set_enabled",
]

NEXT_FIRES = 5


def create_schedule(session: Session, request: ScheduleRequest) -> ScheduleAnswer:
    """The new schedule; the same request again returns the same one.

    Raises CeilingError, InvalidRequestError or InvalidProblemError naming the field, ConflictError for a taken name.
    """
    checked = check_schedule(session, request)
    now: datetime = session.scalars(select(func.clock_timestamp())).one()
    table, who = models.Schedule, acting()
    if session.scalar(select(table.id).where(table.name == request.name)) is None:
        check_new_schedule(session)
    new_id = session.scalar(
        insert(table)
        .values(
            **checked.columns,
            key_id=who.caller.key_id if who else None,
            project_id=acting_project_id(),
            next_at=checked.times.after(now) if request.enabled else None,
        )
        .on_conflict_do_nothing()
        .returning(table.id)
    )
    if new_id is None:
        return _same_schedule(session, request.name, checked.columns["body_hash"])
    _add_problems(session, new_id, checked.problem_ids)
    return schedule(session, new_id)


def change_schedule(session: Session, schedule_id: int, request: ScheduleRequest) -> ScheduleAnswer:
    """The schedule as the request says; its jobs and fires stay, and no due time fires again.

    Raises NotFoundError, NotOwnerError, CeilingError, ConflictError, InvalidRequestError or InvalidProblemError naming
    the field.
    """
    row = _locked(session, schedule_id)
    checked = check_schedule(session, request)
    before = (row.cron, row.time_zone, row.enabled)
    try:
        with session.begin_nested(), session.no_autoflush:
            for name, value in checked.columns.items():
                setattr(row, name, value)
            if (row.cron, row.time_zone, row.enabled) != before or is_far_ahead(session, row):
                row.next_at = first_due(session, row) if row.enabled else None
            session.flush()
    except IntegrityError as error:
        if "uq_schedules_name" not in str(error.orig):
            raise
        raise _taken(request.name) from None
    session.execute(delete(models.ScheduledProblem).where(models.ScheduledProblem.schedule_id == schedule_id))
    _add_problems(session, schedule_id, checked.problem_ids)
    return schedule(session, schedule_id)


def edit_schedule(session: Session, schedule_id: int, changes: ScheduleChanges) -> ScheduleAnswer:
    """The schedule with those fields changed, checked as a new one is; raises what `change_schedule` raises."""
    _locked(session, schedule_id)
    stored = schedule(session, schedule_id).model_dump(include=set(ScheduleRequest.model_fields), exclude_none=True)
    whole = ScheduleRequest.model_validate(stored | changes.model_dump(exclude_unset=True))
    return change_schedule(session, schedule_id, whole)


def _add_problems(session: Session, schedule_id: int, problem_ids: Sequence[int]) -> None:
    session.add_all(
        models.ScheduledProblem(schedule_id=schedule_id, place=place, problem_id=problem_id)
        for place, problem_id in enumerate(problem_ids)
    )
    session.flush()


def schedules(session: Session, project: str | None = None) -> list[ScheduleAnswer]:
    """Every schedule, or those of one project, by name; raises InvalidRequestError for an unknown one."""
    return _answers(session, true() if project is None else models.Schedule.project_id == project_id(session, project))


def schedule(session: Session, schedule_id: int) -> ScheduleAnswer:
    """One schedule; raises NotFoundError."""
    answers = _answers(session, models.Schedule.id == schedule_id)
    if not answers:
        raise NotFoundError("schedule", str(schedule_id))
    return answers[0]


def set_enabled(session: Session, schedule_id: int, enabled: bool) -> ScheduleAnswer:
    """Pauses or resumes the schedule; raises NotFoundError, NotOwnerError, CeilingError.

    Due times in the pause do not fire.
    """
    with forced(session):
        row = _locked(session, schedule_id)
    if enabled:
        check_budget_ceilings(row.budget_trials, row.budget_seconds)
    if row.enabled != enabled or is_far_ahead(session, row):
        row.enabled, row.next_at = enabled, first_due(session, row) if enabled else None
        session.flush()
    return schedule(session, schedule_id)


def delete_schedule(session: Session, schedule_id: int) -> None:
    """Deletes the schedule and the record of its fires; its jobs stay, open ones too.

    Raises NotFoundError, NotOwnerError.
    """
    with forced(session):
        session.delete(_locked(session, schedule_id))
        session.flush()


def run_now(session: Session, schedule_id: int) -> list[JobAnswer]:
    """Fires the schedule now, even if it is paused or has open jobs; the new jobs.

    Raises NotFoundError, NotOwnerError, CeilingError, and ConflictError where too many of its jobs are open.
    """
    row = _locked(session, schedule_id)
    check_budget_ceilings(row.budget_trials, row.budget_seconds)
    obstacle = obstacle_to_fire(session, row.key_id, 1)
    if obstacle is not None:
        raise ConflictError(obstacle)
    made = fire_by_hand(session, row)
    if made is None:
        raise ConflictError(f"The schedule would have more than {MAX_OPEN_JOBS} open jobs; cancel some first.")
    session.flush()
    return [job(session, job_id) for job_id in made]


def fires(session: Session, schedule_id: int, *, limit: int = 50, cursor: str | None = None) -> Page[FireAnswer]:
    """One page of the schedule's fires, newest first; raises NotFoundError, InvalidRequestError."""
    if session.get(models.Schedule, schedule_id) is None:
        raise NotFoundError("schedule", str(schedule_id))
    table = models.ScheduleFire
    query = select(table).where(table.schedule_id == schedule_id)
    return newest_first(session, query, table.id, lambda rows: [*map(_fire_answer, rows)], limit=limit, cursor=cursor)


def _same_schedule(session: Session, name: str, body_hash: str) -> ScheduleAnswer:
    row = session.scalars(select(models.Schedule).where(models.Schedule.name == name)).one_or_none()
    if row is None or row.body_hash != body_hash:
        raise _taken(name)
    return schedule(session, row.id)


def _taken(name: str) -> ConflictError:
    return ConflictError(f"There is another schedule named {name!r}; delete it first, or choose another name.")


def _locked(session: Session, schedule_id: int) -> models.Schedule:
    """The row, locked against firing and changes; raises NotFoundError, NotOwnerError."""
    table = models.Schedule
    row = session.scalars(
        select(table)
        .where(table.id == schedule_id)
        .options(joinedload(table.device_model), joinedload(table.device))
        .with_for_update(of=table)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        raise NotFoundError("schedule", str(schedule_id))
    check_owner(session, "schedule", row.key_id)
    return row


def _answers(session: Session, condition: ColumnElement[bool]) -> list[ScheduleAnswer]:
    table = models.Schedule
    rows = session.scalars(
        select(table)
        .where(condition)
        .order_by(table.name)
        .options(joinedload(table.device_model), joinedload(table.device))
        .execution_options(populate_existing=True)
    ).all()
    ids = [row.id for row in rows]
    problems, last, jobs = _problems(session, ids), _last_fires(session, ids), _last_jobs(session, ids)
    open_jobs = _open_jobs(session, ids)
    return [
        _answer(row, problems[row.id], last.get(row.id), last_jobs=jobs[row.id], open_jobs=open_jobs.get(row.id, 0))
        for row in rows
    ]


def _answer(
    row: models.Schedule,
    problems: list[TunedFor],
    last: models.ScheduleFire | None,
    *,
    last_jobs: list[UUID],
    open_jobs: int,
) -> ScheduleAnswer:
    copied = {name: getattr(row, name) for name in ScheduleAnswer.model_fields if hasattr(row, name)}
    computed: dict[str, Any] = {
        "problems": problems,
        "device_model": row.device_model.slug,
        "device": row.device.uuid if row.device else None,
        "budget": {"trials": row.budget_trials, "seconds": row.budget_seconds, "target_ms": row.budget_target_ms},
        "overlap": row.overlap.value,
        "target": row.target.value,
        "next_at": _utc(row.next_at),
        "next_fires": _next_fires(row),
        "last_fire_at": _utc(last.fire_at if last else row.last_fire_at),
        "last_outcome": last.outcome.value if last else None,
        "last_reason": last.reason if last else None,
        "last_jobs": last_jobs,
        "open_jobs": open_jobs,
    }
    return ScheduleAnswer(**copied | computed)


def _next_fires(row: models.Schedule) -> list[datetime]:
    if row.next_at is None:
        return []
    try:
        return DueTimes.of(row.cron, row.time_zone).next_times(row.next_at.astimezone(UTC), NEXT_FIRES)
    except InvalidRequestError:
        return [row.next_at]  # this host's time zone data do not know the zone; the other fields are still right


def _problems(session: Session, ids: Sequence[int]) -> dict[int, list[TunedFor]]:
    table = models.ScheduledProblem
    problems: dict[int, list[TunedFor]] = defaultdict(list)
    for row in session.scalars(
        select(table)
        .where(table.schedule_id.in_(ids))
        .order_by(table.schedule_id, table.place)
        .options(joinedload(table.problem).joinedload(models.Problem.kernel))
    ):
        problems[row.schedule_id].append(tuned_for_answer(row.problem))
    return problems


def _last_fires(session: Session, ids: Sequence[int]) -> dict[int, models.ScheduleFire]:
    table = models.ScheduleFire
    newest = (
        select(func.max(table.id)).where(table.schedule_id == models.Schedule.id).correlate(models.Schedule)
    ).scalar_subquery()
    query = select(table).where(table.id.in_(select(newest).where(models.Schedule.id.in_(ids))))
    return {row.schedule_id: row for row in session.scalars(query)}


def _last_jobs(session: Session, ids: Sequence[int]) -> dict[int, list[UUID]]:
    table = models.TuningJob
    newest = (
        select(models.Schedule.id, func.max(table.fire_at).label("fire_at"))
        .join(table, table.schedule_id == models.Schedule.id)
        .where(models.Schedule.id.in_(ids))
        .group_by(models.Schedule.id)
        .subquery()
    )
    jobs: dict[int, list[UUID]] = defaultdict(list)
    for schedule_id, job_id in session.execute(
        select(table.schedule_id, table.id)
        .join(newest, (table.schedule_id == newest.c.id) & (table.fire_at == newest.c.fire_at))
        .order_by(table.id)
    ):
        if schedule_id is not None:
            jobs[schedule_id].append(job_id)
    return jobs


def _open_jobs(session: Session, ids: Sequence[int]) -> dict[int, int]:
    table = models.TuningJob
    query = (
        select(table.schedule_id, func.count())
        .where(table.schedule_id.in_(ids), table.state.in_(OPEN))
        .group_by(table.schedule_id)
    )
    return {schedule_id: count for schedule_id, count in session.execute(query) if schedule_id is not None}


def _fire_answer(row: models.ScheduleFire) -> FireAnswer:
    converted = {"fire_at": _utc(row.fire_at), "created_at": _utc(row.created_at), "outcome": row.outcome.value}
    copied = {name: getattr(row, name) for name in FireAnswer.model_fields}
    return FireAnswer(**copied | converted)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
