"""Fires schedules: each due time once, however many processes try; its record and its jobs are one transaction."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete as delete_rows
from sqlalchemy import func, or_, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.jobs.quotas import MINUTE, obstacle_to_fire, recent_fires
from tilewright.service.operations.jobs.turns import engine_priority, next_turn
from tilewright.service.operations.schedules.due_times import DueTimes, whole_second
from tilewright.service.operations.schedules.targets import nothing_found, problems_to_tune
from tilewright.service.operations.staleness.comparisons import expect
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.engine_queue import enqueue, queue_of_device, queue_of_model
from tilewright.service.store.models import FireOutcome, Overlap

logger = logging.getLogger(__name__)

CATCH_UP_S = 60.0
"""Due times missed by less than this fire one by one; older ones become a single fire."""
MAX_OPEN_JOBS = 1000
"""Most open jobs of one schedule, so that `queue` does not grow for ever where jobs take longer than a period."""
AHEAD = timedelta(seconds=2 * CATCH_UP_S)
"""Further ahead than after a clock that was set back a little, or a pause for firing too often."""
DRAWN = 100
"""Schedules that one round of chores looks at: each takes a fifth of a millisecond."""
FROZEN_S = 10.0
"""A process that hangs in the middle of a fire loses its lock after this, and another one fires."""
REMEMBERED = timedelta(days=7)
"""How long fires are kept; at one a second that is 600,000 rows."""
JOBS_AT_ONCE = 200
"""A transaction ends with the due time that brings so many jobs; the rest of the schedule's due times follow."""


def seconds_until_due(session: Session) -> float:
    """Seconds until the next due time by the database's clock, 0 or less when it has come; infinite without any."""
    left = func.extract("epoch", func.min(models.Schedule.next_at) - func.clock_timestamp())
    left_s = session.scalar(select(left).where(models.Schedule.enabled))
    return float("inf") if left_s is None else float(left_s)


def fire_due(session: Session, now: datetime | None = None) -> int:
    """Fires one schedule that is due; how many due times were handled. `now`: by the database's clock, unless a test
    sets it.

    One schedule a transaction, so that nobody waits for others' locks. The key whose schedules fired least often in the
    last minute comes first. Schedules that another process is firing at this moment are left to it, with all others of
    a limited key: two that count at once would both fire the last time that is left.
    """
    session.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {FROZEN_S * 1000:.0f}"))
    now = now or _database_now(session)
    elsewhere: list[int] = []
    busy: list[str] = []
    while (due := _next_due(session, now, elsewhere, busy)) is not None:
        schedule, limited = due
        if limited is not None and not _may_count(session, limited):
            busy.append(limited)
            continue
        left = math.inf if limited is None else settings().fires_per_minute - _recent_fires(session, limited)
        try:
            times = DueTimes.of(schedule.cron, schedule.time_zone)
        except InvalidRequestError as error:
            # Time zone data differ between hosts: another process may know this zone.
            logger.warning("Schedule %r cannot fire here. %s", schedule.name, error)
            elsewhere.append(schedule.id)
            continue
        dealt_with = (
            _catch_up(session, schedule, times, now, left) if left > 0 else _pass_over(session, schedule, times, now)
        )
        session.flush()
        return dealt_with
    return 0


def _next_due(
    session: Session, now: datetime, but: Sequence[int], busy: Sequence[str]
) -> tuple[models.Schedule, str | None] | None:
    """The schedule to fire next, of no key in `busy`, and its key's name if that may fire so often a minute."""
    table, key, recent = models.Schedule, models.ApiKey, recent_fires()
    row = session.execute(
        select(table, key.scope, key.name)
        .outerjoin(key, key.id == table.key_id)
        .outerjoin(recent, recent.c.name == key.name)
        .where(table.enabled, table.next_at <= now, table.id.not_in(but))
        .where(or_(key.name.is_(None), key.name.not_in(busy)))
        .order_by(func.coalesce(recent.c.fires, 0), table.next_at)
        .limit(1)
        .options(joinedload(table.device_model), joinedload(table.device))
        .with_for_update(of=table, skip_locked=True)
        .execution_options(populate_existing=True)
    ).first()
    if row is None:
        return None
    is_limited = row.scope is not None and row.scope != Scope.ADMIN
    return row[0], row.name if is_limited else None


def _may_count(session: Session, name: str) -> bool:
    """Locks the keys of that name until the transaction ends; whether no other process was firing for them."""
    lock = func.pg_try_advisory_xact_lock(func.hashtextextended(f"fires of {name}", 0))
    return bool(session.scalar(select(lock)))


def _recent_fires(session: Session, name: str) -> int:
    recent = recent_fires()
    return session.scalar(select(recent.c.fires).where(recent.c.name == name)) or 0


def fire_by_hand(session: Session, schedule: models.Schedule) -> list[uuid.UUID] | None:
    """Fires outside the due times: the new jobs, None where too many are open. The row must be locked."""
    moment = _database_now(session)
    if moment.microsecond == 0:
        moment += timedelta(microseconds=1)  # whole seconds are due times
    return _fire(session, schedule, moment, manual=True)


def forget_old_fires(session: Session) -> None:
    """Deletes fires older than a week; `last_fire_at` still keeps their due times from firing again.

    Fires that came too early, by a clock that was ahead, stay until a week after their due time.
    """
    table, ago = models.ScheduleFire, func.now() - REMEMBERED
    session.execute(delete_rows(table).where(table.created_at < ago, table.fire_at < ago))


def first_due(session: Session, schedule: models.Schedule) -> datetime:
    """The first due time of an enabled schedule: after now, and after all that were handled.

    Due times that were handled more than AHEAD ahead of now, when a clock was wrong, do not count: they would silence
    the schedule until they have passed. None of them fires twice, as each has its record.
    """
    now = _database_now(session)
    last = schedule.last_fire_at
    start = now if last is None or last > now + AHEAD else max(now, last)  # a clock set back brings nothing again
    return DueTimes.of(schedule.cron, schedule.time_zone).after(start)


def is_far_ahead(session: Session, schedule: models.Schedule) -> bool:
    """Whether the next due time is later than possible: it was computed while a clock was ahead."""
    if schedule.next_at is None:
        return False
    try:
        times = DueTimes.of(schedule.cron, schedule.time_zone)
    except InvalidRequestError:
        return False  # another host knows this time zone
    return schedule.next_at > times.after(_database_now(session) + AHEAD)


def bring_back(session: Session) -> None:
    """Recomputes due times that are too far ahead, for some schedules drawn at random; a chore."""
    table = models.Schedule
    rows = session.scalars(
        select(table)
        .where(table.enabled, table.next_at > func.clock_timestamp() + AHEAD)
        .order_by(func.random())
        .limit(DRAWN)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).all()
    for row in rows:
        if is_far_ahead(session, row):
            logger.warning(
                "Schedule %r was due at %s only: a clock was ahead. It is due sooner now.", row.name, row.next_at
            )
            row.next_at = first_due(session, row)
    session.flush()


def _database_now(session: Session) -> datetime:
    now: datetime = session.scalars(select(func.clock_timestamp())).one()
    return now.astimezone(UTC)


def _catch_up(session: Session, schedule: models.Schedule, times: DueTimes, now: datetime, at_most: float) -> int:
    """Handles up to `at_most` due times until now, and sets the next one; how many there were."""
    due, count = schedule.next_at, 0
    assert due is not None  # noqa: S101 - the row is enabled
    window = whole_second(now, CATCH_UP_S)
    if due < window:
        recent = times.after(window - timedelta(seconds=1))
        _fire(session, schedule, due, reason=_missed(due, times, recent))
        schedule.last_fire_at, due, count = due, recent, 1
    made = 0
    while due <= now and made < JOBS_AT_ONCE and count < at_most:
        made += len(_fire(session, schedule, due) or ())
        schedule.last_fire_at, due, count = due, times.after(due), count + 1
    schedule.next_at = due
    return count


def _pass_over(session: Session, schedule: models.Schedule, times: DueTimes, now: datetime) -> int:
    """Skips the due times of a minute with one record, however many they are."""
    due, most = schedule.next_at, settings().fires_per_minute
    assert due is not None  # noqa: S101 - the row is enabled
    later = times.after(now + MINUTE)
    reason = (
        f"Skipped, with all due times before {later.astimezone(UTC):%F %T} UTC: the schedules of its key may fire "
        f"{most} times a minute."
    )
    _record(session, schedule, due, outcome=FireOutcome.SKIPPED, jobs=0, reason=reason)
    schedule.last_fire_at, schedule.next_at = due, later
    return 1


def _missed(due: datetime, times: DueTimes, recent: datetime) -> str:
    if times.after(due) >= recent:
        return "Late: no API or worker was there to fire it in time."
    until = whole_second(recent, 1).astimezone(UTC)
    return (
        f"Late, and stands for all due times from {due.astimezone(UTC):%F %T} to {until:%F %T} UTC: "
        "no API or worker was there to fire them."
    )


def _fire(
    session: Session, schedule: models.Schedule, fire_at: datetime, *, reason: str | None = None, manual: bool = False
) -> list[uuid.UUID] | None:
    """The new jobs; none if there is nothing to tune or it fired already, None if it is skipped."""
    problem_ids = problems_to_tune(session, schedule)
    obstacle = _obstacle(session, schedule, len(problem_ids), manual=manual)
    outcome = FireOutcome.SKIPPED if obstacle else FireOutcome.FIRED
    idle = None if problem_ids or obstacle else nothing_found(schedule.target)
    reasons = " ".join(part for part in (reason, obstacle, idle) if part) or None
    jobs = 0 if obstacle else len(problem_ids)
    if not _record(session, schedule, fire_at, manual=manual, outcome=outcome, jobs=jobs, reason=reasons):
        return []
    if obstacle:
        return None
    return [_add_job(session, schedule, problem_id, fire_at) for problem_id in problem_ids]


def _record(session: Session, schedule: models.Schedule, fire_at: datetime, **of: Any) -> bool:
    """Records the fire; False if it was recorded before."""
    row = insert(models.ScheduleFire).values(schedule_id=schedule.id, fire_at=fire_at, **of).on_conflict_do_nothing()
    return session.scalar(row.returning(models.ScheduleFire.id)) is not None


def _obstacle(session: Session, schedule: models.Schedule, count: int, *, manual: bool) -> str | None:
    """The reason why no job may be made now."""
    table = models.TuningJob
    open_jobs, oldest = session.execute(
        select(func.count(), func.min(table.created_at)).where(table.schedule_id == schedule.id, table.state.in_(OPEN))
    ).one()
    if open_jobs and schedule.overlap is Overlap.SKIP and not manual:
        since = oldest.astimezone(UTC)
        return f"Skipped: {open_jobs} of its jobs are still open, the oldest since {since:%F %T} UTC."
    if open_jobs + count > MAX_OPEN_JOBS:
        return f"Skipped: {open_jobs} of its jobs are open, and at most {MAX_OPEN_JOBS} may be at a time."
    return obstacle_to_fire(session, schedule.key_id, count)


def _add_job(session: Session, schedule: models.Schedule, problem_id: int, fire_at: datetime) -> uuid.UUID:
    """Adds a job to the queue. It joins no other job and none joins it: each due time measures anew."""
    queue = queue_of_device(schedule.device.uuid) if schedule.device else queue_of_model(schedule.device_model.slug)
    job = models.TuningJob(
        id=models.uuid7(),
        problem_id=problem_id,
        device_model_id=schedule.device_model_id,
        device_id=schedule.device_id,
        queue=queue,
        compiler=schedule.compiler,
        seed=int(fire_at.timestamp()) % 2**31,  # another one each time, and known afterwards
        variants=schedule.variants,
        budget_trials=schedule.budget_trials,
        budget_seconds=schedule.budget_seconds,
        budget_target_ms=schedule.budget_target_ms,
        priority=schedule.priority,
        turn=session.scalar(next_turn(schedule.device_model_id, schedule.key_id, schedule.project_id)),
        schedule_id=schedule.id,
        fire_at=fire_at,
        project_id=schedule.project_id,
    )
    session.add(job)
    session.flush()
    job.engine_id = enqueue(session, job.id, queue, engine_priority(job.priority, job.turn))
    expect(session, job)
    return job.id
