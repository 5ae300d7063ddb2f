"""The order in which a worker gets the jobs of several keys."""

import pytest
from desk import SHAPE, request
from sqlalchemy import select, text, update

from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope, acting_as
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.store import models
from tilewright.service.store.models import JobState

pytestmark = pytest.mark.usefixtures("device")


def ask(session, name: str, count: int, *, scope: Scope = Scope.TUNE, **more) -> None:
    """So many jobs of that key; `seed` tells them apart and `m` says whose they are."""
    known = session.scalars(select(models.ApiKey).where(models.ApiKey.name == name)).first()
    caller = keys.caller_of(known) if known else _new(session, name, scope)
    with acting_as(caller, "test"):
        for _ in range(count):
            seeds = session.scalars(select(models.TuningJob.seed)).all()
            request_job(session, request(trials=1, seed=max(seeds, default=0) + 1, **more))


def _new(session, name, scope):
    token = keys.create_key(session, KeyRequest(name=name, scope=scope)).token
    return keys.find_key(session, token).caller


def fetched(session) -> str:
    """The key of the job that the engine hands out next, which runs from then on and ends the one before."""
    job = models.TuningJob
    session.execute(update(job).where(job.state == JobState.RUNNING).values(state=JobState.DONE))
    fetch = "SELECT * FROM procrastinate_fetch_job_v2(ARRAY['model:test-gpu']::varchar[], NULL)"
    entry = session.execute(text(fetch)).one()
    session.execute(update(job).where(job.engine_id == entry.id).values(state=JobState.RUNNING))
    return session.scalar(
        select(models.ApiKey.name).join(job, job.key_id == models.ApiKey.id).where(job.engine_id == entry.id)
    )


def test_keys_take_turns_however_many_jobs_one_has(session):
    ask(session, "many", 8)
    assert [fetched(session) for _ in range(2)] == ["many", "many"]
    ask(session, "few", 3)
    ask(session, "late", 1)
    order = [fetched(session) for _ in range(7)]
    assert order[:2] == ["few", "late"]
    assert order[:6].count("few") == 3
    assert order.count("many") >= 3


def test_who_keeps_asking_does_not_starve_who_asked_for_much(session):
    ask(session, "many", 5)
    fetched(session)
    served = []
    for _ in range(8):
        ask(session, "steady", 1)
        served.append(fetched(session))
    assert served.count("many") >= 3


def test_priority_goes_before_turns(session):
    ask(session, "many", 3)
    ask(session, "root", 1, scope=Scope.ADMIN, shape=SHAPE | {"m": 8}, priority=4)
    ask(session, "root", 1, shape=SHAPE | {"m": 16}, priority=9)
    assert [fetched(session) for _ in range(5)] == ["root", "many", "many", "many", "root"]
