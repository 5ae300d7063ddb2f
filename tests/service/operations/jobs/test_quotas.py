"""What a key may occupy, and the order in which a worker gets the jobs of several keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from desk import ENVIRONMENT, MODEL, SHAPE, request
from due_schedules import BASE, GEMM, SMALL, due_at, fired_at, jobs_of, wanted
from sqlalchemy import func, select, text, update
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.service.errors import CeilingError, ConflictError
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Caller, Scope, acting_as
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import BudgetRequest, KeyRequest
from tilewright.service.operations.schedules import firing
from tilewright.service.operations.schedules.schedules import create_schedule, fire_due, run_now, schedule
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import JobState
from tilewright.service.store.session import session_scope

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def limits(monkeypatch) -> Iterator[None]:
    """Small quotas."""
    for name, value in {
        "OPEN_JOBS_PER_KEY": 3,
        "QUEUED_SECONDS_PER_KEY": 1000,
        "SCHEDULES_PER_KEY": 2,
        "FIRES_PER_MINUTE": 2,
    }.items():
        monkeypatch.setenv(f"TILEWRIGHT_{name}", str(value))
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def key(session, name: str = "ci", scope: Scope = Scope.TUNE, **more) -> Caller:
    token = keys.create_key(session, KeyRequest(name=name, scope=scope, **more)).token
    return keys.find_key(session, token).caller


def ask(session, caller: Caller, m: int, **more):
    with acting_as(caller, "test"):
        return request_job(session, request(**{"trials": 1, "shape": SHAPE | {"m": m}} | more))[0]


def test_a_key_has_so_many_open_jobs_and_those_of_its_schedules_count(session, limits):
    ci, other = key(session), key(session, "other")
    with acting_as(ci, "test"):
        made = create_schedule(session, wanted(problems=[GEMM, SMALL], enabled=False))
        run_now(session, made.id)
    ask(session, ci, 8)
    with pytest.raises(CeilingError, match="may have 3 jobs"):
        ask(session, ci, 16)
    with acting_as(ci, "test"), pytest.raises(ConflictError, match="3 jobs of the key 'ci' are open"):
        run_now(session, made.id)
    ask(session, other, 16)
    admin = key(session, "root", Scope.ADMIN)
    for m in range(8, 48, 8):
        ask(session, admin, m, seed=1)


def test_a_ceiling_of_the_key_on_open_jobs_holds_for_its_schedules_too(session):
    with acting_as(key(session, max_open_jobs=1), "test"):
        made = create_schedule(session, wanted(enabled=False))
        assert len(run_now(session, made.id)) == 1
        with pytest.raises(ConflictError, match="at most 1 may be"):
            run_now(session, made.id)


def test_the_seconds_of_open_jobs_are_limited(session, limits):
    ci = key(session)
    ask(session, ci, 8, budget=BudgetRequest(seconds=900))
    with pytest.raises(CeilingError, match="may take 1000 s together"):
        ask(session, ci, 16, budget=BudgetRequest(seconds=200))
    with pytest.raises(CeilingError):
        ask(session, ci, 16, budget=BudgetRequest(trials=60))
    with pytest.raises(CeilingError):
        ask(session, ci, 16, budget=BudgetRequest(target_ms=1.0))
    ask(session, ci, 16, budget=BudgetRequest(seconds=90))


def test_a_key_has_so_many_schedules(session, limits):
    ci = key(session)
    with acting_as(ci, "test"):
        made = [create_schedule(session, wanted(name=name)) for name in ("a", "b")]
        with pytest.raises(CeilingError, match="may have 2 schedules"):
            create_schedule(session, wanted(name="c"))
        assert create_schedule(session, wanted(name="a")).id == made[0].id
    with acting_as(key(session, "other"), "test"):
        create_schedule(session, wanted(name="c"))


def test_priorities_above_the_normal_one_need_the_scope_admin(session):
    ci = key(session)
    ask(session, ci, 8, priority=5)
    with pytest.raises(CeilingError, match="needs a key of scope admin"):
        ask(session, ci, 16, priority=6)
    with acting_as(ci, "test"), pytest.raises(CeilingError):
        create_schedule(session, wanted(priority=9))
    ask(session, key(session, "root", Scope.ADMIN), 16, priority=9)
    request_job(session, request(shape=SHAPE | {"m": 24}, priority=9))  # this machine


def test_a_key_that_fires_too_often_is_passed_over_with_one_record(session, limits):
    ci = key(session)
    made = due_at(session, BASE, overlap="queue")
    session.execute(update(models.Schedule).values(key_id=ci.key_id))
    assert fire_due(session, BASE + timedelta(seconds=1)) == 2
    moment = BASE + timedelta(seconds=30)
    assert fire_due(session, moment) == 1
    (skipped,) = fired_at(session, made, "skipped")
    assert skipped == BASE + timedelta(seconds=2)
    shown = schedule(session, made)
    assert "may fire 2 times a minute" in shown.last_reason
    assert moment + timedelta(seconds=60) < shown.next_at <= moment + timedelta(seconds=62)
    assert len(jobs_of(session, made)) == 2


def test_a_backlog_fires_no_more_often_than_its_key_may(session, limits):
    ci = key(session)
    made = due_at(session, BASE, overlap="queue")
    session.execute(update(models.Schedule).values(key_id=ci.key_id))
    moment = BASE + timedelta(seconds=30)
    assert [fire_due(session, moment) for _ in range(2)] == [2, 1]
    assert fired_at(session, made) == [BASE, BASE + timedelta(seconds=1)]


def test_what_another_process_fires_for_a_key_is_left_to_it(session, limits):
    ci, quiet = key(session), key(session, "quiet")
    made, honest = (due_at(session, BASE, name=name) for name in ("one", "honest"))
    for name, owner in ((made, ci), (honest, quiet)):
        session.execute(update(models.Schedule).where(models.Schedule.id == name).values(key_id=owner.key_id))
    moment = BASE + timedelta(milliseconds=500)
    with session.get_bind().engine.connect() as elsewhere:
        elsewhere.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('fires of ci', 0))"))
        assert [fire_due(session, moment) for _ in range(2)] == [1, 0]
        assert (fired_at(session, made), fired_at(session, honest)) == ([], [BASE])
    assert fire_due(session, moment) == 1
    assert fired_at(session, made) == [BASE]


def test_a_schedule_that_fires_while_its_key_asks_for_a_job_counts_that_job(configured):
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        registry.register_device(session, MODEL, "GPU-1", "host-a", 0, ENVIRONMENT)
        ci = key(session, max_open_jobs=1)
        made = due_at(session, BASE, overlap="queue")
        session.execute(update(models.Schedule).values(key_id=ci.key_id))

    def fire():
        with session_scope() as session:
            return fire_due(session, BASE)

    def waits_for_a_lock():
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with session_scope() as session:  # a transaction sees the same all the while
            return session.execute(text(waits)).first()

    with ThreadPoolExecutor(1) as other:
        with session_scope() as session:
            ask(session, ci, 8)
            fires = other.submit(fire)
            until(lambda: fires.done() or waits_for_a_lock())
        assert fires.result() == 1
    with session_scope() as session:
        assert (len(jobs_of(session, made)), fired_at(session, made, "skipped")) == (0, [BASE])


def test_the_key_that_fired_least_comes_first(session):
    noisy, quiet = key(session, "noisy"), key(session, "quiet")
    for place in range(5):
        due_at(session, BASE + timedelta(seconds=place), name=f"noisy {place}")
    session.execute(update(models.Schedule).values(key_id=noisy.key_id))
    honest = due_at(session, BASE + timedelta(seconds=9), name="honest")
    session.execute(update(models.Schedule).where(models.Schedule.id == honest).values(key_id=quiet.key_id))
    moment = BASE + timedelta(seconds=9)
    fire_due(session, moment)  # both have fired nothing: the one that waits for longest
    fire_due(session, moment)
    assert fired_at(session, honest) == [moment]


def test_a_transaction_of_many_jobs_ends_and_the_rest_follows(session, monkeypatch):
    monkeypatch.setattr(firing, "JOBS_AT_ONCE", 4)
    made = due_at(session, BASE, overlap="queue", problems=[GEMM, SMALL])
    moment = BASE + timedelta(seconds=4)
    assert [fire_due(session, moment) for _ in range(4)] == [2, 2, 1, 0]
    assert len(jobs_of(session, made)) == 10


def enqueue(session, name: str, count: int, *, scope: Scope = Scope.TUNE, **more) -> None:
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


def end_all(session, *, but: str = "") -> None:
    """Ends what runs, but for the jobs of that key, which are on another device."""
    job = models.TuningJob
    others = select(models.ApiKey.id).where(models.ApiKey.name != but)
    is_over = (job.state == JobState.RUNNING) & job.key_id.in_(others)
    session.execute(update(job).where(is_over).values(state=JobState.DONE, finished_at=func.now()))


def fetched(session) -> str:
    """The key of the job that the engine hands out next, which runs from then on and ends the one before."""
    end_all(session)
    return started(session)


def started(session) -> str:
    """The key of the job that the engine hands out next, which runs from then on."""
    job = models.TuningJob
    fetch = "SELECT * FROM procrastinate_fetch_job_v2(ARRAY['model:test-gpu']::varchar[], NULL)"
    entry = session.execute(text(fetch)).one()
    running = {"state": JobState.RUNNING, "started_at": func.now()}
    session.execute(update(job).where(job.engine_id == entry.id).values(running))
    return session.scalar(
        select(models.ApiKey.name).join(job, job.key_id == models.ApiKey.id).where(job.engine_id == entry.id)
    )


def test_keys_take_turns_however_many_jobs_one_has(session):
    enqueue(session, "many", 8)
    assert [fetched(session) for _ in range(2)] == ["many", "many"]
    enqueue(session, "few", 3)
    enqueue(session, "late", 1)
    order = [fetched(session) for _ in range(7)]
    assert order[:2] == ["few", "late"]
    assert order[:6].count("few") == 3
    assert order.count("many") >= 3


def test_who_keeps_asking_does_not_starve_who_asked_for_much(session):
    enqueue(session, "many", 5)
    fetched(session)
    served = []
    for _ in range(8):
        enqueue(session, "steady", 1)
        served.append(fetched(session))
    assert served.count("many") >= 3


def test_who_keeps_asking_does_not_starve_who_asked_for_much_on_two_devices(session):
    enqueue(session, "long", 1)
    started(session)  # its turn is the one that runs all the while
    enqueue(session, "many", 3)
    served = ["steady"]
    for _ in range(6):
        if served[-1] == "steady":  # it has one job at a time
            enqueue(session, "steady", 1)
        served.append(started(session))
        end_all(session, but="long")
    assert served[1:] == ["many", "steady"] * 3


def test_a_job_that_was_cancelled_before_it_began_has_used_no_turn(session):
    enqueue(session, "many", 2)
    fetched(session)
    for _ in range(4):
        enqueue(session, "regretful", 1)
        cancel_job(session, session.scalars(select(models.TuningJob.id).order_by(models.TuningJob.seed.desc())).first())
    enqueue(session, "regretful", 1)
    waiting = select(models.TuningJob.turn).where(models.TuningJob.state == JobState.QUEUED)
    assert session.scalars(waiting.order_by(models.TuningJob.seed)).all() == [1, 0]


def test_what_a_key_had_done_before_anybody_waited_does_not_count(session):
    enqueue(session, "steady", 3)
    for _ in range(3):
        fetched(session)
    session.execute(text("UPDATE tuning_jobs SET finished_at = now() - interval '1 minute', state = 'done'"))
    enqueue(session, "many", 2)
    enqueue(session, "steady", 1)
    assert [fetched(session) for _ in range(3)] == ["many", "steady", "many"]


def test_priority_goes_before_turns(session):
    enqueue(session, "many", 3)
    enqueue(session, "root", 1, scope=Scope.ADMIN, shape=SHAPE | {"m": 8}, priority=4)
    enqueue(session, "root", 1, shape=SHAPE | {"m": 16}, priority=9)
    assert [fetched(session) for _ in range(5)] == ["root", "many", "many", "many", "root"]
