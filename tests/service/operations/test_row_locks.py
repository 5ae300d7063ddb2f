"""Operations that decide by what they read lock the rows first, so that two at a time take turns."""

from __future__ import annotations

import uuid

import pytest
from desk import measured, request
from sqlalchemy import event

from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Caller, Ceilings, Scope, acting_as
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import KeyRequest


@pytest.fixture
def locked(session):
    """The tables whose rows were locked so far, each with how often."""
    found: list[str] = []

    def note(_connection, _cursor, statement, *_rest):
        if "FOR UPDATE" in statement:
            found.append(statement.split("FROM ")[1].split()[0].strip())

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


def test_open_jobs_of_a_key_are_counted_under_its_lock(session, device, locked):
    made = keys.create_key(session, KeyRequest(name="small", scope=Scope.TUNE, max_open_jobs=1))
    del locked[:]
    who = Caller("small", Scope.TUNE, uuid.UUID(str(made.id)), Ceilings(max_open_jobs=1), "small")
    with acting_as(who, "POST /v1/jobs"):
        request_job(session, request())
    assert "api_keys" in locked


@pytest.mark.parametrize("change", [keys.rotate_key, keys.revoke_key])
def test_keys_are_changed_under_their_lock(session, device, locked, change):
    keys.create_key(session, KeyRequest(name="ci"))
    del locked[:]
    change(session, "ci")
    assert "api_keys" in locked
