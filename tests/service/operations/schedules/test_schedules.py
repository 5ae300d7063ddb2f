"""Schedules: made, changed, refused, and the times at which they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE
from due_schedules import GEMM, SMALL, due_at, jobs_of, wanted
from sqlalchemy import func, select

from tilewright.service.errors import CeilingError, InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Caller, Ceilings, Scope, acting_as
from tilewright.service.operations.requests import BudgetRequest, KeyRequest
from tilewright.service.operations.schedules.due_times import DueTimes
from tilewright.service.operations.schedules.schedules import (
    change_schedule,
    create_schedule,
    delete_schedule,
    fire_due,
    run_now,
    schedules,
    set_enabled,
)
from tilewright.service.store import models

# --- whose key has ceilings


@pytest.mark.usefixtures("device")
def test_a_key_with_ceilings_on_budgets_alone_may_make_schedules_within_them(session):
    token = keys.create_key(session, KeyRequest(name="ci", scope=Scope.TUNE, max_trials=20)).token
    with acting_as(keys.find_key(session, token).caller, "test"):
        with pytest.raises(CeilingError, match="20 trials"):
            create_schedule(session, wanted(budget=BudgetRequest(trials=21)))
        made = create_schedule(session, wanted(budget=BudgetRequest(trials=20)))
        assert len(run_now(session, made.id)) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("budget", "most"),
    [
        (BudgetRequest(trials=21), Ceilings(max_trials=20)),
        (BudgetRequest(seconds=9), Ceilings(max_trials=20)),
        (BudgetRequest(trials=5, seconds=9), Ceilings(max_seconds=8)),
    ],
)
def test_a_schedule_of_somebody_else_runs_for_a_key_only_within_its_ceilings(session, budget, most):
    made = create_schedule(session, wanted(budget=budget, enabled=False))
    with acting_as(Caller("key ci", Scope.TUNE, models.uuid7(), most), "test"):
        with pytest.raises(CeilingError, match="This key allows at most"):
            run_now(session, made.id)
        with pytest.raises(CeilingError, match="This key allows at most"):
            set_enabled(session, made.id, enabled=True)
    assert jobs_of(session, made.id) == []
    assert not schedules(session)[0].enabled
    assert len(run_now(session, made.id)) == 1


# --- created, listed, changed


@pytest.mark.usefixtures("device")
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


@pytest.mark.usefixtures("device")
def test_all_wrong_problems_are_named_at_once(session):
    wrong = [{"kernel": "gemm", "shape": {"m": 1, "n": 1}}, GEMM, {"kernel": "nosuch", "shape": {"m": 1}}, GEMM]
    with pytest.raises(InvalidRequestError) as refused:
        create_schedule(session, wanted(problems=wrong))
    named = [error.field for error in (refused.value, *refused.value.also)]
    assert named == ["problems.0.shape.k", "problems.2.kernel", "problems.3"]


@pytest.mark.usefixtures("device")
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


@pytest.mark.usefixtures("device")
def test_a_change_of_anything_but_times_leaves_the_next_due_time_as_it_is(session):
    now = datetime.now(UTC)
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=now.hour >= 12)
    schedule_id = due_at(session, noon, cron="0 0 12 * * *")
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", priority=9)).next_at == noon
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", enabled=False)).next_at is None
    assert change_schedule(session, schedule_id, wanted(cron="0 0 13 * * *")).next_at.hour == 13


@pytest.mark.usefixtures("device")
def test_a_due_time_that_was_dealt_with_does_not_come_again_after_a_change(session):
    due = datetime.now(UTC).replace(microsecond=0)
    schedule_id = due_at(session, due)
    assert fire_due(session, due) == 1
    changed = change_schedule(session, schedule_id, wanted(cron="0/2 * * * * *"))
    assert changed.next_at > due


@pytest.mark.usefixtures("device")
def test_a_schedule_created_while_there_was_one_model_stays_with_it(session):
    made = create_schedule(session, wanted())
    other = registry.DeviceModel("other-gpu", "Other", "cuda", MODEL.limits, 1, {}, None)
    registry.register_device(session, other, "GPU-9", "host-b", 0, ENVIRONMENT)
    assert [job.device_model for job in run_now(session, made.id)] == ["test-gpu"]


@pytest.mark.usefixtures("device")
def test_a_deleted_schedule_leaves_its_jobs(session):
    made = create_schedule(session, wanted())
    (job,) = run_now(session, made.id)
    delete_schedule(session, made.id)
    assert schedules(session) == []
    row = session.get_one(models.TuningJob, job.id, populate_existing=True)
    assert (row.schedule_id, row.state.value) == (None, "queued")
    assert session.scalar(select(func.count()).select_from(models.ScheduleFire)) == 0


BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(cron: str, zone: str, after: str, count: int) -> list[str]:
    times = DueTimes.of(cron, zone)
    return [f"{t:%m-%d %H:%M:%S}" for t in times.next_times(times.after(at(after)), count)]


def test_six_fields_begin_with_the_second():
    assert due("15 30 2 * * *", "UTC", "2026-11-21 00:00", 2) == ["11-21 02:30:15", "11-22 02:30:15"]
    assert due("* * * * * *", "UTC", "2026-11-21 00:00:58.5", 3) == [
        "11-21 00:00:59",
        "11-21 00:01:00",
        "11-21 00:01:01",
    ]
    assert due("0 0 9 * * mon-fri", "UTC", "2026-11-20 10:00", 1) == ["11-23 09:00:00"]


def test_a_due_time_is_later_than_the_moment_asked_about():
    assert due("0 * * * * *", "UTC", "2026-11-21 00:01:00", 1) == ["11-21 00:02:00"]


def test_fields_are_read_in_the_time_zone():
    assert due("0 0 12 * * *", BERLIN, "2026-11-21 00:00", 1) == ["11-21 11:00:00"]
    assert due("0 0 12 * * *", "Asia/Kathmandu", "2026-11-21 00:00", 1) == ["11-21 06:15:00"]


def test_what_falls_into_the_hour_left_out_in_spring_is_due_once_when_it_is_over():
    # 28 March 2027, 02:00 CET becomes 03:00 CEST, which is 01:00 UTC.
    assert due("0 30 2 * * *", BERLIN, "2027-03-27 12:00", 2) == ["03-28 01:00:00", "03-29 00:30:00"]
    assert due("0 15 2 * * *", NEW_YORK, "2027-03-13 12:00", 2) == ["03-14 07:00:00", "03-15 06:15:00"]


def test_every_twenty_minutes_goes_on_evenly_over_both_changes():
    for start in ("2027-03-27 23:50", "2026-10-24 23:50"):
        times = DueTimes.of("0 */20 * * * *", BERLIN).next_times(at(start) + timedelta(minutes=10), 12)
        assert {after - before for before, after in pairwise(times)} == {timedelta(minutes=20)}


def test_the_hour_that_autumn_repeats_counts_once_for_named_hours():
    # 25 October 2026, 03:00 CEST becomes 02:00 CET: 02:30 is shown at 00:30 UTC and at 01:30 UTC.
    assert due("0 30 2 * * *", BERLIN, "2026-10-24 12:00", 2) == ["10-25 00:30:00", "10-26 01:30:00"]
    assert due("0 30 2 * * *", BERLIN, "2026-10-25 00:30", 1) == ["10-26 01:30:00"]
    assert due("0 30 1 * * *", NEW_YORK, "2026-10-31 12:00", 2) == ["11-01 05:30:00", "11-02 06:30:00"]


def test_the_hour_that_autumn_repeats_counts_twice_for_every_hour():
    expected = ["10-25 00:00:00", "10-25 01:00:00", "10-25 02:00:00"]
    assert due("0 0 * * * *", BERLIN, "2026-10-24 23:00", 3) == expected


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, "Africa/Cairo", "America/Santiago", "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["0 0 0 * * *", "0 30 0-4 * * *", "*/30 59 1,2 * * *", "0 0 */6 * * *"])
@pytest.mark.parametrize("start", ["2026-09-01", "2026-10-20", "2027-03-10", "2027-04-22"])
def test_due_times_only_grow_and_asking_again_continues_the_same_row(zone, cron, start):
    times = DueTimes.of(cron, zone)
    row = times.next_times(times.after(at(start)), 100)
    assert all(before < after for before, after in pairwise(row))
    stepped = [row[0]]
    while len(stepped) < 100:
        stepped.append(times.after(stepped[-1]))
    assert stepped == row


def test_a_leap_day_comes():
    assert DueTimes.of("0 0 0 29 2 *", "UTC").after(at("2026-11-21")) == at("2028-02-29")


def test_five_fields_are_those_of_cron_itself():
    """At the full minute; what is kept has six."""
    times = DueTimes.of("30 2 * * mon", "UTC")
    assert times == DueTimes.of("0 30 2 * * mon", "UTC")
    assert times.cron == "0 30 2 * * mon"


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "five fields"),
        ("* * * *", "five fields (minute hour day month weekday), or six with the second first, not 4"),
        ("0 0 0 1 1 * 2027", "not 7"),
        ("@daily", "five fields"),
        ("60 * * * * *", "60 is not a valid second; seconds go from 0 to 59."),
        ("0 61 * * * *", "61 is not a valid minute; minutes go from 0 to 59."),
        ("0 0 24 * * *", "24 is not a valid hour; hours go from 0 to 23."),
        ("0 0 0 1-32 * *", "32 is not a valid day; days go from 1 to 31."),
        ("0 0 0 * * 8", "8 is not a valid weekday; weekdays go from 0 to 7."),
        ("0 0 0 0 * *", "0 is not a valid day; days go from 1 to 31."),
        ("*/0 * * * * *", "second field '*/0' must step by 1 to 59"),
        ("*/90 * * * * *", "second field '*/90' must step by 1 to 59"),
        ("a * * * * *", "second field 'a'"),
        ("0 R * * * *", "minute field 'R'"),
        ("0 H * * * *", "minute field 'H'"),
        ("0 0 0 * * mo", "weekday field 'mo' cannot be read; it takes *, numbers from 0 to 7 or mon to sun"),
        ("0 5-1-2 * * * *", "minute field '5-1-2' cannot be read; it takes *, numbers from 0 to 59, ranges 1-5"),
        ("0 -5 * * * *", "minute field '-5' cannot be read"),
        ("0 0 0 30 2 *", "no date ever matches"),
        ("0 0 0 31 4,6 *", "no date ever matches"),
        ("\u0663 * * * * *", "second field"),
    ],
)
def test_an_invalid_expression_is_refused_with_its_reason_and_an_example(cron, said):
    with pytest.raises(InvalidRequestError) as refused:
        DueTimes.of(cron, "UTC")
    assert refused.value.field == "cron"
    assert said in refused.value.reason
    assert refused.value.example == "0 30 2 * * *"


@pytest.mark.parametrize(
    "zone", ["Europe/Berlinn", "", "../../etc/passwd", "America", "localtime", "Europe/Berlin\0", "+01"]
)
def test_an_unknown_time_zone_is_refused_with_an_example(zone):
    with pytest.raises(InvalidRequestError) as refused:
        DueTimes.of("* * * * * *", zone)
    assert (refused.value.field, refused.value.example) == ("time_zone", "Europe/Berlin")
