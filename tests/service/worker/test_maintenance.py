from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from factories import TILED_16, Rows
from sqlalchemy import event, func, text
from waiting import PATIENCE_S

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.device_lock import FleetLock
from tilewright.service.operations import registry
from tilewright.service.operations.fleet.fleet import workers_alive
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.jobs import cancel_job, job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import JobRequest
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import engine, session_scope
from tilewright.service.worker.engine import poll_s
from tilewright.service.worker.maintenance import CHORE_LOCK, Maintenance, begin_round, do_chores, look_every_s
from tilewright.service.worker.silence import PATIENCE
from tilewright.tuner.devices.device import DeviceModel, Environment

MODEL = DeviceModel("test-gpu", "Test GPU", "cuda", Limits((9, 0), 132, 1 << 30), 1, {}, None)
STALL_S = 60.0  # the setting's default


@pytest.fixture(autouse=True)
def _old_database(monkeypatch):
    """The tests' database is seconds old."""
    monkeypatch.setattr("tilewright.service.worker.maintenance.is_database_new", lambda _session: False)


@pytest.fixture
def job_id(configured):
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        environment = Environment("580.1", "13.0", "nvrtc", "13.0", "PyCUDA", "default")
        registry.register_device(session, MODEL, "GPU-1", "host", 0, environment, worker="worker-1")
        return request_job(session, JobRequest(kernel="gemm", shape={"m": 8, "n": 8, "k": 8}))[0].id


def fetch_as_worker_silent_for(seconds: float, job_id) -> int:
    """Puts the entry into the hands of a worker that last spoke so long ago; takes the job as that worker."""
    with session_scope() as session:
        entry = session.get_one(models.TuningJob, job_id).engine_id
        worker = session.scalar(
            text(
                "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - make_interval(secs => :s))"
                " RETURNING id"
            ),
            {"s": seconds},
        )
        session.execute(
            text("UPDATE procrastinate_jobs SET status = 'doing', worker_id = :w WHERE id = :e"),
            {"w": worker, "e": entry},
        )
        epoch = job_progress.take_job(session, job_id, entry, "worker-1")
    assert epoch is not None
    return epoch


def entries() -> list[tuple[int, str]]:
    with session_scope() as session:
        rows = session.execute(text("SELECT id, status::text FROM procrastinate_jobs ORDER BY id"))
        return [tuple(row) for row in rows]


def test_a_silent_workers_job_is_queued_again_once(job_id):
    fetch_as_worker_silent_for(STALL_S + 5, job_id)
    assert do_chores()
    assert [status for _, status in entries()] == ["todo"]
    assert do_chores()
    with session_scope() as session:
        assert session.scalar(text("SELECT attempts FROM procrastinate_jobs")) == 1


def test_a_workers_job_that_speaks_is_left_alone(job_id):
    fetch_as_worker_silent_for(STALL_S - 5, job_id)
    assert do_chores()
    assert [status for _, status in entries()] == ["doing"]


def test_a_silent_worker_that_holds_its_device_is_waited_for_three_times_as_long(job_id):
    with FleetLock("GPU-1"):
        fetch_as_worker_silent_for(PATIENCE * STALL_S - 5, job_id)
        assert do_chores()
        assert [status for _, status in entries()] == ["doing"]
        with session_scope() as session:
            session.execute(text("UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - interval '10 s'"))
        assert do_chores()
        assert [status for _, status in entries()] == ["todo"]


def test_who_holds_another_device_is_not_waited_for(job_id):
    with FleetLock("GPU-2"):
        fetch_as_worker_silent_for(STALL_S + 5, job_id)
        assert do_chores()
        assert [status for _, status in entries()] == ["todo"]


@pytest.mark.parametrize(("seconds", "status"), [(STALL_S - 5, "doing"), (STALL_S + 5, "todo")])
def test_a_silent_worker_that_stores_trials_keeps_its_job(job_id, seconds, status):
    epoch = fetch_as_worker_silent_for(10 * STALL_S, job_id)
    with session_scope() as session:
        rows = Rows(session)
        study, *_ = rows.study()
        trial = rows.trial(study, session.get_one(models.TuningJob, job_id), TILED_16, 1.0)
        trial.epoch, trial.created_at = epoch, func.now() - timedelta(seconds=seconds)
    assert do_chores()
    assert [status for _, status in entries()] == [status]


def test_a_database_that_has_just_started_has_heard_of_nobody(job_id, monkeypatch):
    monkeypatch.undo()
    fetch_as_worker_silent_for(STALL_S + 5, job_id)
    for heartbeat_s, status in ((1e6, "doing"), (1e-6, "todo")):
        changed = settings().model_copy(update={"heartbeat_s": heartbeat_s})
        monkeypatch.setattr("tilewright.service.worker.silence.settings", lambda: changed)  # noqa: B023 - called at once
        assert do_chores()
        assert [status for _, status in entries()] == [status]


def test_a_cancelled_job_of_a_silent_worker_ends_without_another_worker(job_id):
    epoch = fetch_as_worker_silent_for(STALL_S + 5, job_id)
    with session_scope() as session:
        cancel_job(session, job_id)
    do_chores()
    with session_scope() as session:
        ended = job(session, job_id)
    assert (ended.state, ended.epoch) == ("cancelled", epoch + 1)


def test_an_open_job_without_an_entry_gets_a_new_one(job_id):
    with session_scope() as session:
        session.execute(text("DELETE FROM procrastinate_jobs"))
    do_chores()
    ((entry, status),) = entries()
    assert status == "todo"
    with session_scope() as session:
        assert session.get_one(models.TuningJob, job_id).engine_id == entry
    do_chores()
    assert len(entries()) == 1


def test_an_ended_job_gets_no_new_entry(job_id):
    with session_scope() as session:
        cancel_job(session, job_id)
        session.execute(text("DELETE FROM procrastinate_jobs"))
    do_chores()
    assert entries() == []


def test_only_one_process_does_the_chores(job_id):
    done = []
    with session_scope() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CHORE_LOCK})
        assert not do_chores((done.append,))
    assert do_chores((done.append,))
    assert len(done) == 1


def test_the_thread_does_chores_until_it_is_stopped(job_id, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr("tilewright.service.worker.maintenance.do_chores", done.set)
    with Maintenance(pause_s=0.01) as maintenance:
        assert done.wait(PATIENCE_S)
    assert not maintenance._thread.is_alive()


def test_a_job_without_an_entry_gets_one_and_the_others_keep_theirs(job_id):
    with session_scope() as session:
        lost = request_job(session, JobRequest(kernel="gemm", shape={"m": 9, "n": 8, "k": 8}))[0].id
        other = request_job(session, JobRequest(kernel="gemm", shape={"m": 10, "n": 8, "k": 8}))[0].id
        session.execute(text("DELETE FROM procrastinate_jobs WHERE args->>'job_id' = :job"), {"job": str(lost)})
        session.get_one(models.TuningJob, other).engine_id = None
    before = entries()
    assert do_chores()
    assert do_chores()
    with session_scope() as session:
        held = {one: session.get_one(models.TuningJob, one).engine_id for one in (job_id, lost, other)}
    assert held[job_id] == before[0][0]
    made = {number for number, _ in entries()} - {number for number, _ in before}
    assert made == {held[lost], held[other]}


def test_the_chores_ask_the_same_however_long_the_queue_is(job_id):
    def asked():
        said = []
        listening = (engine(), "before_cursor_execute", lambda *told: said.append(told[2]))
        event.listen(*listening)
        assert do_chores()
        event.remove(*listening)
        return said

    few = asked()
    with session_scope() as session:
        for size in range(16, 20):
            request_job(session, JobRequest(kernel="gemm", shape={"m": size, "n": 8, "k": 8}))
    assert asked() == few


def test_a_round_of_chores_is_begun_by_one_process_alone(configured):
    assert begin_round(0.0)
    assert not begin_round(60.0)
    assert begin_round(0.0)


def test_a_process_that_hangs_in_beginning_a_round_holds_nobody_up(configured):
    with session_scope() as hanging:
        hanging.get_one(models.ChoreRound, 1, with_for_update=True)
        assert not begin_round(0.0)
    assert begin_round(0.0)


def test_a_chore_that_has_more_to_do_is_repeated(configured):
    left = [True, True, False]
    assert do_chores((lambda _: left.pop(0),))
    assert not left


def test_two_hundred_idle_workers_ask_no_more_often_than_a_few(configured):
    with session_scope() as session:
        environment = Environment("580.1", "13.0", "nvrtc", "13.0", "PyCUDA", "default")
        for place in range(3):
            device, worker = f"GPU-{place}", None if place == 2 else f"host:{place}"
            registry.register_device(session, MODEL, device, "host", place, environment, worker=worker)
        assert workers_alive(session) == 2  # the third device has none
        session.execute(text("UPDATE devices SET heartbeat_at = now() - interval '1 hour' WHERE ordinal = 0"))
        assert workers_alive(session) == 1
    assert (poll_s(1), look_every_s(1)) == (0.1, 0.5)
    assert 200 / poll_s(200) <= 20 / poll_s(20)
    assert 200 / look_every_s(200) <= 10 / look_every_s(10)
