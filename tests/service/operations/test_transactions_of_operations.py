"""Operations commit before they return, and lock the rows that they change."""

from __future__ import annotations

from datetime import timedelta

import pytest
from desk import SHAPE, measured, request
from due_schedules import wanted
from sqlalchemy import event, func, select

from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.access.projects import create_project
from tilewright.service.operations.best.publish import publish_best
from tilewright.service.operations.best.retractions import retract
from tilewright.service.operations.caller import Scope, acting_as
from tilewright.service.operations.claims.claims import report_claim, settle_claims
from tilewright.service.operations.fleet.retention import prune_samples
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import ClaimRequest, KeyRequest, ProjectRequest, WebhookRequest
from tilewright.service.operations.schedules.firing import bring_back
from tilewright.service.operations.schedules.schedules import (
    change_schedule,
    create_schedule,
    delete_schedule,
    fire_due,
    run_now,
    set_enabled,
)
from tilewright.service.operations.staleness.comparisons import settle
from tilewright.service.operations.transaction import committed, refuse_in_transaction, transaction
from tilewright.service.operations.webhooks import deliveries, webhooks
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.worker.maintenance import enqueue_forgotten
from tilewright.tuner.loop.finals import Finalist
from tilewright.tuner.loop.tune import TuneResult


def add_kernel(session, name):
    """The number of kernels with this one; raises ValueError for a name that is taken."""
    if session.scalar(select(models.Kernel.id).where(models.Kernel.name == name)):
        raise ValueError(name)
    session.add(models.Kernel(name=name, declaration={}))
    session.flush()
    return session.scalar(select(func.count()).select_from(models.Kernel))


def count():
    with transaction() as session:
        return session.scalar(select(func.count()).select_from(models.Kernel))


def test_it_has_committed_when_it_returns(configured):
    add, before = committed(add_kernel), count()
    assert add("one") == count() == before + 1
    refuse_in_transaction("a prediction")  # none is open any more


def test_it_leaves_nothing_where_it_fails(configured):
    def adds_and_fails(session):
        add_kernel(session, "one")
        add_kernel(session, "one")

    before = count()
    with pytest.raises(ValueError, match="one"):
        committed(adds_and_fails)()
    assert count() == before


@pytest.fixture
def locked(session):
    """The tables whose rows were locked so far, in order; "skipping" where locked rows are passed over."""
    found: list[str] = []

    def note(_connection, _cursor, statement, *_rest):
        if "FOR UPDATE" in statement or "FOR NO KEY UPDATE" in statement:
            found.append(statement.split("FROM ")[1].split()[0] + " skipping" * ("SKIP LOCKED" in statement))

    engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def test_a_job_is_taken_under_its_lock(session, take, locked):
    desk = take()
    assert locked.count("tuning_jobs") == 2  # taken, and its study begun
    del locked[:]
    job_progress.take_job(session, desk.job_id, desk.row.engine_id, "worker-2")
    assert locked == ["tuning_jobs"]


def test_trials_are_numbered_under_the_lock_of_their_study(take, locked):
    desk = take()
    del locked[:]
    desk.record(0, measured(1.0))
    assert locked == ["studies"]


def test_open_jobs_of_a_key_and_its_project_are_counted_under_their_locks(session, device, locked):
    create_project(session, ProjectRequest(name="vision", max_open_jobs=3))
    made = keys.create_key(session, KeyRequest(name="small", scope=Scope.TUNE, max_open_jobs=1, project="vision"))
    del locked[:]
    with acting_as(keys.find_key(session, made.token).caller, "POST /v1/jobs"):
        request_job(session, request())
    assert locked[:2] == ["api_keys", "projects"]


@pytest.mark.parametrize("change", [keys.rotate_key, keys.revoke_key])
def test_keys_are_changed_under_their_lock(session, device, locked, change):
    keys.create_key(session, KeyRequest(name="ci"))
    del locked[:]
    change(session, "ci")
    assert "api_keys" in locked


def test_bests_are_published_and_retracted_under_the_lock_of_their_study(session, take, locked):
    desk = take()
    desk.record(0, measured(1.0, bound_ratio=0.25))
    del locked[:]
    finalist = Finalist(desk.configurations[0], 0.9, (0.89, 0.91), (0.9,), ties=False)
    settled = TuneResult(finalist, (finalist,), None, default_ms=2.0, slowest_ms=8.0, stopped_by="trials")
    best = publish_best(session, desk.row, desk.study, settled)
    assert "studies" in locked
    del locked[:]
    retract(session, best.id, "wrong")
    assert "studies" in locked


CHANGES = [
    lambda session, made: set_enabled(session, made.id, enabled=False),
    lambda session, made: change_schedule(session, made.id, wanted()),
    lambda session, made: delete_schedule(session, made.id),
    lambda session, made: run_now(session, made.id),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_schedule_is_changed_under_its_lock(session, device, locked, change):
    made = create_schedule(session, wanted())
    del locked[:]
    change(session, made)
    assert "schedules" in locked


def test_messages_are_claimed_one_process_each(session, take, locked):
    webhooks.create_webhook(session, WebhookRequest(name="ci", url="https://ci.example/hook"))
    desk = take()
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE)
    del locked[:]
    assert len(deliveries.claim(session, limit=1)) == 1
    assert locked == ["webhook_deliveries skipping"]


def test_what_is_due_is_fired_by_one_process(session, device, locked):
    create_schedule(session, wanted())
    del locked[:]
    fire_due(session)
    assert locked[:1] == ["schedules skipping"]


def test_a_message_is_made_due_again_under_its_lock(session, take, locked):
    webhooks.create_webhook(session, WebhookRequest(name="ci", url="https://ci.example/hook"))
    desk = take()
    job_progress.end_job(session, desk.job_id, desk.epoch, JobState.DONE)
    (sent,) = webhooks.deliveries(session, "ci").items
    del locked[:]
    webhooks.redeliver(session, "ci", sent.id)
    assert locked == ["webhook_deliveries"]


def test_claims_are_settled_under_their_lock(session, device, locked):
    kernel = registry.catalogue().get("gemm")
    claimed = ClaimRequest(
        kernel="gemm",
        shape=SHAPE,
        device_model="test-gpu",
        driver="580.1",
        variant="tiled",
        configuration={"TILE_WIDTH": 16},
        source_hash=kernel.source_hash("tiled"),
        seen="wrong",
    )
    made, _ = report_claim(session, claimed)
    del locked[:]
    settle_claims(session, made.job_id, is_wrong=True, found="wrong indeed")
    assert locked[:1] == ["claims"]


def test_chores_pass_over_rows_that_another_process_has(session, take, locked):
    take()
    del locked[:]
    prune_samples(session, timedelta(0))
    settle(session)
    enqueue_forgotten(session)
    bring_back(session)
    assert locked == ["tuning_jobs skipping", "comparisons skipping", "tuning_jobs skipping", "schedules skipping"]
