"""What due times come to: jobs, fires that are left out, and none twice."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from due_schedules import BASE, GEMM, SMALL, due_at, fired_at, jobs_of, seconds, wanted
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import IntegrityError

from tilewright.service.errors import ConflictError
from tilewright.service.operations.fleet import observed
from tilewright.service.operations.fleet.observed_trials import TrialTally
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.jobs.turns import engine_priority
from tilewright.service.operations.requests import JobRequest, ScheduleChanges
from tilewright.service.operations.schedules import firing
from tilewright.service.operations.schedules.schedules import (
    create_schedule,
    edit_schedule,
    fire_due,
    fires,
    run_now,
    schedule,
    set_enabled,
)
from tilewright.service.store import models

pytestmark = pytest.mark.usefixtures("device")


def test_a_due_time_makes_a_job_for_each_problem_and_waits_for_the_next(session):
    made = due_at(session, BASE, problems=[GEMM, SMALL], priority=3, device="GPU-1", variants=["naive"])
    assert fire_due(session, BASE - timedelta(milliseconds=1)) == 0
    assert fire_due(session, BASE + timedelta(milliseconds=1)) == 1
    first, second = jobs_of(session, made)
    assert (first.fire_at, second.fire_at, first.priority, first.variants) == (BASE, BASE, 3, ["naive"])
    assert first.problem_id != second.problem_id
    entries = session.execute(text("SELECT queue_name, args->>'job_id', priority FROM procrastinate_jobs ORDER BY id"))
    assert [tuple(entry) for entry in entries] == [
        ("device:GPU-1", str(first.id), engine_priority(3, 0)),
        ("device:GPU-1", str(second.id), engine_priority(3, 1)),
    ]
    shown = schedule(session, made)
    assert (shown.last_fire_at, shown.last_outcome, shown.last_jobs) == (BASE, "fired", [first.id, second.id])
    assert (shown.next_at, shown.open_jobs) == (BASE + timedelta(seconds=1), 2)
    assert fire_due(session, BASE + timedelta(milliseconds=2)) == 0


def test_a_scheduled_job_is_never_an_identical_open_one_of_somebody_else(session):
    theirs, _ = request_job(session, JobRequest(**GEMM))
    made = create_schedule(session, wanted())
    (ours,) = run_now(session, made.id)
    assert ours.id != theirs.id
    assert (ours.schedule_id, theirs.schedule_id) == (made.id, None)
    assert request_job(session, JobRequest(**GEMM))[0].id == theirs.id


def test_every_due_time_of_the_last_minute_fires_once(session):
    made = due_at(session, BASE, overlap="queue")
    assert fire_due(session, BASE + timedelta(seconds=60.5)) == 61
    assert fired_at(session, made) == seconds(*range(61))
    assert [job.fire_at for job in jobs_of(session, made)] == seconds(*range(61))
    assert len({job.seed for job in jobs_of(session, made)}) == 61


def test_older_missed_ones_become_one_that_says_so(session):
    made = due_at(session, BASE, overlap="queue")
    now = BASE + timedelta(days=365, seconds=0.5)
    assert fire_due(session, now) == 1 + 61
    oldest, *recent = fired_at(session, made)
    assert oldest == BASE
    assert recent == [now - timedelta(seconds=0.5 + ago) for ago in range(60, -1, -1)]
    said = session.scalar(select(models.ScheduleFire.reason).where(models.ScheduleFire.fire_at == BASE))
    assert "stands for all due times from 2030-01-01 12:00:00 to 2031-01-01 11:58:59 UTC" in said


def test_a_single_one_that_is_late_by_hours_still_fires(session):
    made = due_at(session, BASE, cron="0 0 12 * * *")
    assert fire_due(session, BASE + timedelta(hours=5)) == 1
    (fire,) = fires(session, made).items
    reason = "Late: no API or worker was there to fire it in time."
    assert (fire.fire_at, fire.outcome, fire.reason) == (BASE, "fired", reason)
    assert schedule(session, made).next_at == BASE + timedelta(days=1)


def test_skip_leaves_a_due_time_out_while_a_job_is_open_and_says_why(session):
    made = due_at(session, BASE)
    assert fire_due(session, BASE + timedelta(seconds=2.5)) == 3
    (job,) = jobs_of(session, made)
    assert (fired_at(session, made), fired_at(session, made, "skipped")) == (seconds(0), seconds(1, 2))
    shown = schedule(session, made)
    assert (shown.last_fire_at, shown.last_outcome, shown.last_jobs) == (seconds(2)[0], "skipped", [job.id])
    assert shown.last_reason.startswith("Skipped: 1 of its jobs are still open")
    cancel_job(session, job.id)
    assert fire_due(session, BASE + timedelta(seconds=3.5)) == 1
    assert fired_at(session, made) == seconds(0, 3)


def test_skip_does_not_look_at_jobs_of_others(session):
    first = due_at(session, BASE)
    second = due_at(session, BASE, name="another")
    request_job(session, JobRequest(**GEMM))
    assert [fire_due(session, BASE), fire_due(session, BASE)] == [1, 1]  # one schedule a transaction
    assert [len(jobs_of(session, one)) for one in (first, second)] == [1, 1]


def test_queue_stops_at_a_thousand_open_jobs_and_says_why(session, monkeypatch):
    monkeypatch.setattr(firing, "MAX_OPEN_JOBS", 3)
    made = due_at(session, BASE, overlap="queue", problems=[GEMM, SMALL])
    assert fire_due(session, BASE + timedelta(seconds=1.5)) == 2
    assert (fired_at(session, made), fired_at(session, made, "skipped")) == (seconds(0), seconds(1))
    assert "at most 3" in schedule(session, made).last_reason
    with pytest.raises(ConflictError, match="more than 1000 open jobs; cancel some first"):
        run_now(session, made)


def test_a_paused_schedule_does_not_fire_and_forgets_what_was_due_meanwhile(session):
    made = due_at(session, BASE)
    paused = set_enabled(session, made, enabled=False)
    assert (paused.enabled, paused.next_at, paused.next_fires) == (False, None, [])
    assert fire_due(session, BASE + timedelta(days=1)) == 0
    before = session.scalar(select(func.clock_timestamp()))
    resumed = set_enabled(session, made, enabled=True)
    assert before < resumed.next_at <= before + timedelta(seconds=2)
    assert fires(session, made).items == []


def test_resuming_one_that_is_not_paused_keeps_what_is_due(session):
    due = session.scalar(select(func.clock_timestamp())) - timedelta(seconds=5)
    made = due_at(session, due)
    assert set_enabled(session, made, enabled=True).next_at == due


def ahead(session) -> int:
    """A schedule that fired while the clock was years ahead."""
    made = due_at(session, BASE, overlap="queue")
    assert fire_due(session, BASE + timedelta(seconds=0.5)) == 1
    return made


def is_due_soon(session, made, since) -> bool:
    now = session.scalar(select(func.clock_timestamp()))
    return since < schedule(session, made).next_at <= now + timedelta(seconds=2)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "change",
    [
        lambda session, made: firing.bring_back(session),
        lambda session, made: set_enabled(session, made, enabled=True),
        lambda session, made: (set_enabled(session, made, enabled=False), set_enabled(session, made, enabled=True)),
        lambda session, made: edit_schedule(session, made, ScheduleChanges(priority=3)),
    ],
    ids=["chore", "resumed", "paused and resumed", "edited"],
)
def test_a_clock_that_was_ahead_does_not_silence_a_schedule(session, change):
    made = ahead(session)
    assert schedule(session, made).next_at == BASE + timedelta(seconds=1)
    since = session.scalar(select(func.clock_timestamp()))
    change(session, made)
    assert is_due_soon(session, made, since)
    fire_due(session, BASE)  # when that time really comes
    assert fired_at(session, made).count(BASE) == 1
    assert len([job for job in jobs_of(session, made) if job.fire_at == BASE]) == 1


def test_what_was_created_while_the_clock_was_ahead_comes_back(session, monkeypatch):
    monkeypatch.setattr(firing, "DRAWN", 2)  # as many as are due later than in two minutes
    for number in range(20):
        create_schedule(session, wanted(name=f"soon-{number}", cron="* * * * * *"))
    made = due_at(session, BASE)
    daily = create_schedule(session, wanted(name="daily", cron="0 0 0 * * *"))
    since = session.scalar(select(func.clock_timestamp()))
    firing.bring_back(session)
    assert is_due_soon(session, made, since)
    assert schedule(session, daily.id).next_at == daily.next_at


def test_the_metric_of_lateness_shows_a_clock_that_was_ahead(session):
    ahead(session)
    years_s = observed._observe(session, TrialTally()).schedules_late_s
    assert years_s > 365 * 86400


def test_created_paused_it_waits_for_resume(session):
    made = create_schedule(session, wanted(enabled=False))
    assert (made.enabled, made.next_at) == (False, None)
    assert set_enabled(session, made.id, enabled=True).next_at is not None


def test_run_now_works_while_paused_and_while_a_job_is_open_and_moves_no_due_time(session):
    made = create_schedule(session, wanted(enabled=False))
    (first,) = run_now(session, made.id)
    (second,) = run_now(session, made.id)
    assert first.id != second.id
    assert [(fire.manual, fire.jobs) for fire in fires(session, made.id).items] == [(True, 1), (True, 1)]
    shown = schedule(session, made.id)
    assert (shown.next_at, shown.last_jobs, shown.open_jobs) == (None, [second.id], 2)


def test_a_clock_set_back_brings_no_due_time_twice(session):
    made = due_at(session, BASE, overlap="queue")  # 2030: ahead of the real clock
    assert fire_due(session, BASE + timedelta(seconds=0.5)) == 1
    assert fire_due(session, BASE - timedelta(hours=1)) == 0
    session.execute(update(models.Schedule).values(next_at=BASE))  # even if somebody wrote it so
    assert fire_due(session, BASE + timedelta(seconds=1.5)) == 2
    assert fired_at(session, made) == seconds(0, 1)
    assert [job.fire_at for job in jobs_of(session, made)] == seconds(0, 1)


def test_one_due_time_cannot_have_two_jobs_for_a_problem(session):
    made = due_at(session, BASE)
    fire_due(session, BASE)
    with pytest.raises(IntegrityError, match="uq_tuning_jobs_schedule_fire"):
        session.execute(
            text(
                "INSERT INTO tuning_jobs (id, problem_id, queue, budget_trials, schedule_id, fire_at)"
                " SELECT :id, problem_id, queue, 1, schedule_id, fire_at FROM tuning_jobs WHERE schedule_id = :schedule"
            ),
            {"id": uuid.uuid4(), "schedule": made},
        )


def test_a_time_zone_that_this_host_does_not_know_stops_no_other_schedule(session, caplog):
    lost = due_at(session, BASE)
    session.execute(update(models.Schedule).where(models.Schedule.id == lost).values(time_zone="Mars/Olympus"))
    other = due_at(session, BASE + timedelta(seconds=1), name="another")
    assert fire_due(session, BASE + timedelta(seconds=1)) == 1
    assert fired_at(session, other) == seconds(1)
    assert "'each second' cannot fire here" in caplog.text
    assert schedule(session, lost).next_fires == [BASE]


def test_fires_come_in_pages_newest_first(session):
    made = due_at(session, BASE, overlap="queue")
    fire_due(session, BASE + timedelta(seconds=4))
    page = fires(session, made, limit=3)
    rest = fires(session, made, limit=3, cursor=page.next_cursor)
    assert [fire.fire_at for fire in page.items + rest.items] == seconds(4, 3, 2, 1, 0)
    assert rest.next_cursor is None


def test_fires_older_than_a_week_are_forgotten_and_still_do_not_come_again(session):
    soon = session.scalar(select(func.clock_timestamp())).replace(microsecond=0) + timedelta(seconds=60)
    made = due_at(session, soon, overlap="queue")  # by a clock that has been set back since
    fire_due(session, soon + timedelta(seconds=1))
    table, ago = models.ScheduleFire, func.now() - timedelta(days=8)
    session.execute(update(table).where(table.fire_at == soon).values(created_at=ago))
    firing.forget_old_fires(session)
    assert soon in fired_at(session, made)  # its due time is still to come
    session.execute(update(table).where(table.fire_at == soon).values(fire_at=ago))
    firing.forget_old_fires(session)
    assert fired_at(session, made) == [soon + timedelta(seconds=1)]
    session.execute(delete(table))
    set_enabled(session, made, enabled=False)
    assert set_enabled(session, made, enabled=True).next_at == soon + timedelta(seconds=2)
    assert schedule(session, made).last_fire_at == soon + timedelta(seconds=1)
