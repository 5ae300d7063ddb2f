from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE
from due_schedules import GEMM, SMALL, due_at, jobs_of, wanted
from sqlalchemy import func, select

from tilewright.service.errors import CeilingError, InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Caller, Ceilings, Scope, acting_as
from tilewright.service.operations.requests import BudgetRequest, KeyRequest
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

pytestmark = pytest.mark.usefixtures("device")


# --- whose key has ceilings


def test_a_key_with_ceilings_on_budgets_alone_may_make_schedules_within_them(session):
    token = keys.create_key(session, KeyRequest(name="ci", scope=Scope.TUNE, max_trials=20)).token
    with acting_as(keys.find_key(session, token).caller, "test"):
        with pytest.raises(CeilingError, match="20 trials"):
            create_schedule(session, wanted(budget=BudgetRequest(trials=21)))
        made = create_schedule(session, wanted(budget=BudgetRequest(trials=20)))
        assert len(run_now(session, made.id)) == 1


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


def test_all_wrong_problems_are_named_at_once(session):
    wrong = [{"kernel": "gemm", "shape": {"m": 1, "n": 1}}, GEMM, {"kernel": "nosuch", "shape": {"m": 1}}, GEMM]
    with pytest.raises(InvalidRequestError) as refused:
        create_schedule(session, wanted(problems=wrong))
    named = [error.field for error in (refused.value, *refused.value.also)]
    assert named == ["problems.0.shape.k", "problems.2.kernel", "problems.3"]


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
    now = datetime.now(UTC)
    noon = now.replace(hour=12, minute=0, second=0, microsecond=0) + timedelta(days=now.hour >= 12)
    schedule_id = due_at(session, noon, cron="0 0 12 * * *")
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", priority=9)).next_at == noon
    assert change_schedule(session, schedule_id, wanted(cron="0 0 12 * * *", enabled=False)).next_at is None
    assert change_schedule(session, schedule_id, wanted(cron="0 0 13 * * *")).next_at.hour == 13


def test_a_due_time_that_was_dealt_with_does_not_come_again_after_a_change(session):
    due = datetime.now(UTC).replace(microsecond=0)
    schedule_id = due_at(session, due)
    assert fire_due(session, due) == 1
    changed = change_schedule(session, schedule_id, wanted(cron="0/2 * * * * *"))
    assert changed.next_at > due


def test_a_schedule_created_while_there_was_one_model_stays_with_it(session):
    made = create_schedule(session, wanted())
    other = registry.DeviceModel("other-gpu", "Other", "cuda", MODEL.limits, 1, {}, None)
    registry.register_device(session, other, "GPU-9", "host-b", 0, ENVIRONMENT)
    assert [job.device_model for job in run_now(session, made.id)] == ["test-gpu"]


def test_a_deleted_schedule_leaves_its_jobs(session):
    made = create_schedule(session, wanted())
    (job,) = run_now(session, made.id)
    delete_schedule(session, made.id)
    assert schedules(session) == []
    row = session.get_one(models.TuningJob, job.id, populate_existing=True)
    assert (row.schedule_id, row.state.value) == (None, "queued")
    assert session.scalar(select(func.count()).select_from(models.ScheduleFire)) == 0
