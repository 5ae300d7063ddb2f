from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import IntegrityError

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import CeilingError, ConflictError, InvalidRequestError, NotFoundError
from tilewright.service.operations import firing, registry
from tilewright.service.operations.caller import Caller, Ceilings, Scope, acting_as
from tilewright.service.operations.jobs import cancel_job
from tilewright.service.operations.request_job import request_job
from tilewright.service.operations.requests import BudgetRequest, JobRequest, ScheduleRequest
from tilewright.service.operations.schedules import (
    change_schedule,
    create_schedule,
    delete_schedule,
    fire_due,
    fires,
    run_now,
    schedule,
    schedules,
    set_enabled,
)
from tilewright.service.store import models

pytestmark = pytest.mark.usefixtures("device")

GEMM = {"kernel": "gemm", "shape": SHAPE}
SMALL = {"kernel": "gemm", "shape": {"m": 8, "n": 8, "k": 8}}
BASE = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


def wanted(**more) -> ScheduleRequest:
    return ScheduleRequest(**{"name": "each second", "cron": "* * * * * *", "problems": [GEMM]} | more)


def due_at(session, moment: datetime, **more) -> int:
    """Id of a schedule that waits for that moment."""
    made = create_schedule(session, wanted(**more))
    session.execute(update(models.Schedule).where(models.Schedule.id == made.id).values(next_at=moment))
    return made.id


def jobs_of(session, schedule_id: int) -> list[models.TuningJob]:
    table = models.TuningJob
    query = select(table).where(table.schedule_id == schedule_id).order_by(table.fire_at, table.id)
    return list(session.scalars(query))


def fired_at(session, schedule_id: int, outcome: str = "fired") -> list[datetime]:
    table = models.ScheduleFire
    query = select(table.fire_at).where(table.schedule_id == schedule_id, table.outcome == outcome)
    return list(session.scalars(query.order_by(table.fire_at)))


def seconds(*offsets: int) -> list[datetime]:
    return [BASE + timedelta(seconds=offset) for offset in offsets]


# --- whose key allows only so many open jobs


@pytest.fixture
def limited():
    """Inside its block the caller may have a single open job."""
    key = Caller("key ci", Scope.TUNE, models.uuid7(), Ceilings(max_open_jobs=1))
    return lambda: acting_as(key, "test")


def test_a_key_with_a_ceiling_on_open_jobs_gets_none_from_schedules(session, limited):
    made = create_schedule(session, wanted())
    set_enabled(session, made.id, enabled=False)
    for ask in (
        lambda: create_schedule(session, wanted(name="another")),
        lambda: change_schedule(session, made.id, wanted(problems=[GEMM, SMALL])),
        lambda: set_enabled(session, made.id, enabled=True),
        lambda: run_now(session, made.id),
    ):
        with limited(), pytest.raises(CeilingError, match="may have 1 jobs"):
            ask()
    assert [one.name for one in schedules(session)] == [made.name]
    assert jobs_of(session, made.id) == []
    with limited():
        set_enabled(session, made.id, enabled=False)
        delete_schedule(session, made.id)


def test_a_key_with_ceilings_on_budgets_alone_may_make_schedules_within_them(session):
    key = Caller("key ci", Scope.TUNE, models.uuid7(), Ceilings(max_trials=20))
    with acting_as(key, "test"):
        with pytest.raises(CeilingError, match="20 trials"):
            create_schedule(session, wanted(budget=BudgetRequest(trials=21)))
        made = create_schedule(session, wanted(budget=BudgetRequest(trials=20)))
        assert len(run_now(session, made.id)) == 1


# --- created, listed, changed


def test_a_schedule_shows_what_it_tunes_and_its_next_five_due_times(session):
    made = create_schedule(
        session,
        wanted(
            name="nightly",
            cron="0  30 2 * * *",
            time_zone="Europe/Berlin",
            problems=[GEMM, SMALL],
            budget=BudgetRequest(trials=7, seconds=2.5),
            variants=["tiled", "naive"],
            priority=4,
            overlap="queue",
        ),
    )
    assert (made.name, made.cron, made.device_model, made.device) == ("nightly", "0 30 2 * * *", "test-gpu", None)
    assert [problem.shape for problem in made.problems] == [SHAPE, SMALL["shape"]]
    assert made.problems[0].options["trans_b"] is False
    assert (made.budget["trials"], made.budget["seconds"], made.variants) == (7, 2.5, ["tiled", "naive"])
    assert (made.overlap, made.enabled, made.last_fire_at, made.last_jobs) == ("queue", True, None, [])
    assert len(made.next_fires) == 5
    assert made.next_fires[0] == made.next_at
    assert made.next_fires == sorted(set(made.next_fires))
    assert schedules(session) == [made]


def test_the_same_request_again_is_the_same_schedule_and_another_of_its_name_is_refused(session):
    made = create_schedule(session, wanted())
    assert create_schedule(session, wanted()) == made
    with pytest.raises(ConflictError, match="each second"):
        create_schedule(session, wanted(priority=1))
    assert len(schedules(session)) == 1


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"cron": "* * * * *"}, "cron"),
        ({"cron": "0 0 0 30 2 *"}, "cron"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"problems": [GEMM, {"kernel": "gemmm", "shape": SHAPE}]}, "problems.1.kernel"),
        (
            {"problems": [GEMM, {"kernel": "gemm", "shape": {"m": 20_000, "n": 20_000, "k": 20_000}}]},
            "problems.1.shape",
        ),
        ({"problems": [GEMM, SMALL, GEMM]}, "problems.2"),
        ({"problems": [GEMM, GEMM | {"options": {"trans_b": False}}]}, "problems.1"),
        ({"device_model": "h200"}, "device_model"),
        ({"device": "GPU-2"}, "device"),
        ({"variants": ["warp9"]}, "variants"),
        ({"budget": BudgetRequest(trials=10**6)}, "budget.trials"),
    ],
)
def test_a_field_that_is_wrong_is_named(session, more, field):
    with pytest.raises(InvalidRequestError) as refused:
        create_schedule(session, wanted(**more))
    assert refused.value.field == field
    assert session.scalar(select(func.count()).select_from(models.Schedule)) == 0


def test_a_wrong_shape_is_named_with_its_problem(session):
    with pytest.raises(InvalidProblemError) as refused:
        create_schedule(session, wanted(problems=[GEMM, {"kernel": "gemm", "shape": {"m": 1, "n": 1}}]))
    assert refused.value.field == "problems.1.shape.k"


def test_a_changed_schedule_is_as_one_made_so_but_for_what_came_of_it(session):
    made = create_schedule(session, wanted(name="nightly", cron="0 30 2 * * *", problems=[GEMM, SMALL]))
    jobs = run_now(session, made.id)
    request = wanted(name="hourly", cron="0 0 * * * *", problems=[SMALL], priority=1, overlap="queue")
    changed = change_schedule(session, made.id, request)
    assert (changed.id, changed.name, changed.cron, changed.overlap) == (made.id, "hourly", "0 0 * * * *", "queue")
    assert [problem.shape for problem in changed.problems] == [SMALL["shape"]]
    assert all(moment.minute == 0 for moment in changed.next_fires)
    assert changed.last_jobs == [job.id for job in jobs]
    assert create_schedule(session, request).id == made.id  # what was said last is what is stored
    searching = change_schedule(session, made.id, wanted(name="hourly", target="stale", problems=[], top=7))
    assert (searching.target, searching.top, searching.problems) == ("stale", 7, [])


def test_a_change_of_anything_but_times_leaves_the_next_due_time_as_it_is(session):
    schedule_id = due_at(session, BASE, cron="0 0 12 * * *")
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", priority=9)).next_at == BASE
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", enabled=False)).next_at is None
    assert change_schedule(session, schedule_id, wanted(cron="0 0 13 * * *")).next_at.hour == 13


def test_a_due_time_that_was_dealt_with_does_not_come_again_after_a_change(session):
    schedule_id = due_at(session, BASE)
    assert fire_due(session, BASE) == 1
    changed = change_schedule(session, schedule_id, wanted(cron="0/2 * * * * *"))
    assert changed.next_at == BASE + timedelta(seconds=2)


def test_a_change_to_a_name_that_is_taken_is_refused_and_changes_nothing(session):
    create_schedule(session, wanted(name="first"))
    second = create_schedule(session, wanted(name="second"))
    with pytest.raises(ConflictError, match="first"):
        change_schedule(session, second.id, wanted(name="first", priority=1))
    assert schedule(session, second.id) == second


def test_a_schedule_created_while_there_was_one_model_stays_with_it(session):
    made = create_schedule(session, wanted())
    other = registry.DeviceModel("other-gpu", "Other", "cuda", MODEL.limits, 1, {}, None)
    registry.register_device(session, other, "GPU-9", "host-b", 0, ENVIRONMENT)
    assert [job.device_model for job in run_now(session, made.id)] == ["test-gpu"]


def test_what_is_not_there_is_not_found(session):
    change = lambda s, i: change_schedule(s, i, wanted())  # noqa: E731 - a row of the loop below
    for call in (schedule, run_now, delete_schedule, fires, change, lambda s, i: set_enabled(s, i, enabled=True)):
        with pytest.raises(NotFoundError, match="schedule '17'"):
            call(session, 17)


def test_a_deleted_schedule_leaves_its_jobs(session):
    made = create_schedule(session, wanted())
    (job,) = run_now(session, made.id)
    delete_schedule(session, made.id)
    assert schedules(session) == []
    row = session.get_one(models.TuningJob, job.id, populate_existing=True)
    assert (row.schedule_id, row.state.value) == (None, "queued")
    assert session.scalar(select(func.count()).select_from(models.ScheduleFire)) == 0


# --- firing


def test_a_due_time_makes_a_job_for_each_problem_and_waits_for_the_next(session):
    made = due_at(session, BASE, problems=[GEMM, SMALL], priority=3, device="GPU-1", variants=["naive"])
    assert fire_due(session, BASE - timedelta(milliseconds=1)) == 0
    assert fire_due(session, BASE + timedelta(milliseconds=1)) == 1
    first, second = jobs_of(session, made)
    assert (first.fire_at, second.fire_at, first.priority, first.variants) == (BASE, BASE, 3, ["naive"])
    assert first.problem_id != second.problem_id
    entries = session.execute(text("SELECT queue_name, args->>'job_id', priority FROM procrastinate_jobs ORDER BY id"))
    assert [tuple(entry) for entry in entries] == [
        ("device:GPU-1", str(first.id), 3),
        ("device:GPU-1", str(second.id), 3),
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
    assert (fire.fire_at, fire.outcome, fire.reason) == (BASE, "fired", "Late: nobody was there to fire it in time.")
    assert schedule(session, made).next_at == BASE + timedelta(days=1)


def test_skip_leaves_a_due_time_out_while_a_job_is_open_and_says_why(session):
    made = due_at(session, BASE)
    assert fire_due(session, BASE + timedelta(seconds=2.5)) == 3
    (job,) = jobs_of(session, made)
    assert (fired_at(session, made), fired_at(session, made, "skipped")) == (seconds(0), seconds(1, 2))
    shown = schedule(session, made)
    assert (shown.last_fire_at, shown.last_outcome, shown.last_jobs) == (seconds(2)[0], "skipped", [job.id])
    assert shown.last_reason.startswith("Skipped: 1 of its jobs still open")
    cancel_job(session, job.id)
    assert fire_due(session, BASE + timedelta(seconds=3.5)) == 1
    assert fired_at(session, made) == seconds(0, 3)


def test_skip_does_not_look_at_jobs_of_others(session):
    first = due_at(session, BASE)
    second = due_at(session, BASE, name="another")
    request_job(session, JobRequest(**GEMM))
    assert fire_due(session, BASE) == 2
    assert [len(jobs_of(session, one)) for one in (first, second)] == [1, 1]


def test_queue_stops_at_a_thousand_open_jobs_and_says_why(session, monkeypatch):
    monkeypatch.setattr(firing, "MAX_OPEN_JOBS", 3)
    made = due_at(session, BASE, overlap="queue", problems=[GEMM, SMALL])
    assert fire_due(session, BASE + timedelta(seconds=1.5)) == 2
    assert (fired_at(session, made), fired_at(session, made, "skipped")) == (seconds(0), seconds(1))
    assert "at most 3" in schedule(session, made).last_reason
    with pytest.raises(ConflictError, match="too many open jobs"):
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
    made = due_at(session, BASE)
    assert set_enabled(session, made, enabled=True).next_at == BASE


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
    set_enabled(session, made, enabled=False)
    assert set_enabled(session, made, enabled=True).next_at == BASE + timedelta(seconds=1)
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
    made = due_at(session, BASE, overlap="queue")
    fire_due(session, BASE + timedelta(seconds=1))
    table = models.ScheduleFire
    session.execute(update(table).where(table.fire_at == BASE).values(created_at=func.now() - timedelta(days=8)))
    firing.forget_old_fires(session)
    assert fired_at(session, made) == seconds(1)
    session.execute(delete(table))
    set_enabled(session, made, enabled=False)
    assert set_enabled(session, made, enabled=True).next_at == BASE + timedelta(seconds=2)
    assert schedule(session, made).last_fire_at == BASE + timedelta(seconds=1)
