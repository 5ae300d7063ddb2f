"""Connections: one engine a process, patience with a restarting database, notifications, rows that others hold."""

from __future__ import annotations

import os
import resource
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from desk import ENVIRONMENT, MODEL, request
from factories import SHAPE
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.service.dashboard.rendering import page
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import registry
from tilewright.service.operations.access import keys
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best_pool.pool import BestPool
from tilewright.service.operations.best_pool.process import Slice
from tilewright.service.operations.caller import Scope, acting_as
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import KeyRequest, ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule, set_enabled
from tilewright.service.store import models
from tilewright.service.store import session as store_session
from tilewright.service.store.changes import CHANNEL, Changes
from tilewright.service.store.engine_queue import MAX_QUEUE_BYTES, enqueue, queue_of_device, queue_of_model
from tilewright.service.store.patience import patiently
from tilewright.service.store.session import InTransactionError, configure, refuse_in_transaction, session_scope


@pytest.fixture
def connection_of(configured):
    """The driver's connection behind a session."""

    def find(session: Session) -> psycopg.Connection:
        return session.connection().connection.dbapi_connection

    return find


def test_a_connection_at_work_goes_on_and_is_closed_when_it_comes_back(connection_of):
    with store_session.session_scope() as session:
        connection = connection_of(session)
        store_session.configure(None)
        assert session.scalar(text("SELECT 1")) == 1
        assert not connection.closed
    assert connection.closed


def test_an_idle_connection_is_closed_at_once(connection_of):
    with store_session.session_scope() as session:
        connection = connection_of(session)
    assert not connection.closed  # the pool keeps it
    store_session.configure(None)
    assert connection.closed


def test_an_address_that_is_found_when_another_was_chosen_counts_no_more(monkeypatch):
    """A thread that an ended application left behind starts the embedded server, which takes a second."""

    class Starting:
        def __init__(self, _home):
            pass

        def enter(self):
            configure("postgresql://chosen")
            return "postgresql://embedded"

    monkeypatch.setattr(store_session, "EmbeddedPostgres", Starting)
    configure(None)
    try:
        assert [store_session.database_url() for _ in range(2)] == ["postgresql://embedded", "postgresql://chosen"]
    finally:
        configure(None)


def test_threads_that_come_at_once_get_one_engine(configured):
    together = threading.Barrier(8)

    def first(_):
        together.wait()
        return store_session.engine()

    seldom = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the others come while the first is still making it
    try:
        with ThreadPoolExecutor(8) as threads:
            assert len(set(threads.map(first, range(8)))) == 1
    finally:
        sys.setswitchinterval(seldom)


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_work_is_done_again_when_the_connection_breaks_under_it(configured):
    time, tries = Time(), []

    def work(session):
        tries.append(session.scalar(text("SELECT pg_backend_pid()")))
        if len(tries) < 3:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return "done"

    assert patiently(work, clock=time.clock, sleep=time.sleep) == "done"
    assert len(set(tries)) == 3
    assert time.slept == [0.1, 0.2]


def test_patience_ends():
    time = Time()
    configure("postgresql://postgres@/nowhere?host=/nonexistent")
    try:
        with pytest.raises(DatabaseUnavailableError):
            patiently(lambda session: session.scalar(text("SELECT 1")), clock=time.clock, sleep=time.sleep)
    finally:
        configure(None)
    assert 60 <= time.now < 65
    assert max(time.slept) == 2.0


def test_an_error_of_the_work_itself_is_not_tried_again(configured):
    tries = []

    def work(session):
        tries.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        patiently(work)
    assert tries == [1]


MOST_OF_SELECT = 1024
"""FD_SETSIZE of Linux and macOS."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * MOST_OF_SELECT), hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < MOST_OF_SELECT:
        opened.append(os.open(os.devnull, os.O_RDONLY))
    yield
    for file in opened:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("configured", "many_files")
def test_a_change_is_told_to_a_process_with_a_thousand_files_open():
    with Changes() as changes:
        assert changes.wait(0.0) == []
        with session_scope() as session:
            session.execute(text("SELECT pg_notify(:channel, 'best 1')"), {"channel": CHANNEL})
        assert changes.wait(PATIENCE_S) == ["best 1"]


ASKED = Slice("gemm", "nvidia-h200", "float32", (), None, None, (SHAPE,), 1.0)


def test_a_page_is_not_rendered_and_the_pool_not_waited_for_in_a_transaction(configured):
    with session_scope():
        with pytest.raises(InTransactionError, match="rendering"):
            page("sign_in.html")
        with pytest.raises(InTransactionError, match="wait for predictions"):
            BestPool(1).ask(ASKED, "somebody", lambda _: None)
    refuse_in_transaction("anything")


@pytest.mark.usefixtures("shipped_records")
def test_a_prediction_is_not_made_in_a_transaction(configured):
    with session_scope(), pytest.raises(InTransactionError, match="prediction"):
        find_best("gemm", "nvidia-h200", SHAPE)
    assert find_best("gemm", "nvidia-h200", SHAPE).match == "predicted"


GPU = "GPU-a4e59a8c-ee12-c98d-bf1f-55a15dc33eab"


@pytest.mark.parametrize("queue", [queue_of_device(GPU), queue_of_model("nvidia-" + "x" * 121)])
def test_a_job_goes_into_a_queue_of_a_long_name(session, queue):
    assert len(queue.encode()) <= MAX_QUEUE_BYTES
    assert enqueue(session, uuid.uuid4(), queue, 0) > 0


def test_queues_differ_and_short_names_stay_readable():
    assert queue_of_model("nvidia-h200") == "model:nvidia-h200"
    assert queue_of_device(GPU) != queue_of_device(GPU.replace("a4e5", "a4e6"))


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
