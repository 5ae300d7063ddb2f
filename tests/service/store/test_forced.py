"""Revoking, pausing and cancelling while somebody else holds the rows."""

import threading
from contextlib import contextmanager

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE, request
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope, acting_as
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import KeyRequest, ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule, set_enabled
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

SCHEDULE = ScheduleRequest(name="s", cron="0 0 0 1 1 *", problems=[{"kernel": "gemm", "shape": SHAPE}])


@pytest.fixture
def made(configured):
    """Ids of a key, of a schedule and of a job of it."""
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        registry.register_device(session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)
        token = keys.create_key(session, KeyRequest(name="ci", scope=Scope.TUNE)).token
        caller = keys.find_key(session, token).caller
        with acting_as(caller, "test"):
            schedule, job = create_schedule(session, SCHEDULE), request_job(session, request())[0]
    return schedule.id, job.id


@contextmanager
def holding(statement: str, **values: object):
    """Another transaction has done this, and ends after the block, unless somebody ends it before."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with session_scope() as session:
                session.execute(text(statement), values)
                held.set()
                done.wait(60)
                session.execute(text("SELECT 1"))
        except (DatabaseUnavailableError, DBAPIError):
            ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    try:
        yield ended
    finally:
        done.set()
        thread.join()


def test_a_key_is_revoked_beside_a_transaction_that_fires_its_schedules(made):
    # The second update of a row takes a lock on the key that it refers to, which FOR UPDATE would wait for.
    twice = "UPDATE schedules SET next_at = now(); UPDATE schedules SET last_fire_at = now()"
    statements = f"DO $$ BEGIN {twice.replace(';', '; ')}; END $$"
    with holding(statements) as ended:
        with session_scope() as session:
            keys.revoke_key(session, "ci")
        assert not ended  # who waits for longer than WAITS_S ends what it waits for
    assert not ended  # nobody had to end


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("SELECT * FROM api_keys FOR UPDATE", lambda session, _: keys.revoke_key(session, "ci")),
        ("SELECT * FROM schedules FOR UPDATE", lambda session, ids: set_enabled(session, ids[0], enabled=False)),
        ("SELECT * FROM tuning_jobs FOR UPDATE", lambda session, ids: cancel_job(session, ids[1])),
    ],
    ids=["revoke", "pause", "cancel"],
)
def test_who_holds_the_row_is_ended(made, statement, change):
    with holding(statement) as ended, session_scope() as session:
        change(session, made)
    assert ended
    with session_scope() as session:
        key = session.scalars(select(models.ApiKey)).one()
        schedule, job = session.get_one(models.Schedule, made[0]), session.get_one(models.TuningJob, made[1])
        assert [key.revoked_at is not None, not schedule.enabled, job.cancel_requested].count(True) == 1
