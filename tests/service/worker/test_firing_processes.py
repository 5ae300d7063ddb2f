"""Schedules as several real processes fire them at once."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from sampling import EXHAUSTIVE
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import ProgrammingError
from waiting import until

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations import registry
from tilewright.service.operations.requests import BudgetRequest, ScheduleRequest
from tilewright.service.operations.schedules import firing
from tilewright.service.operations.schedules.schedules import create_schedule, delete_schedule, run_now, schedule
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
from tilewright.service.worker.maintenance import Maintenance
from tilewright.tuner.devices.device import DeviceModel, Environment

MODEL = DeviceModel("test-gpu", "Test GPU", "cuda", Limits((9, 0), 132, 1 << 30), 1, {}, None)
LOOP = """
import sys, threading
from tilewright.service.store.session import configure
from tilewright.service.worker.maintenance import Maintenance
configure(sys.argv[1])
with Maintenance():
    print("ready", flush=True)
    sys.stdin.read()
"""


def every_second(**more) -> ScheduleRequest:
    problem = {"kernel": "gemm", "shape": {"m": 8, "n": 8, "k": 8}}
    return ScheduleRequest(
        **{"name": "each second", "cron": "* * * * * *", "problems": [problem], "overlap": "queue"} | more
    )


@pytest.fixture
def registered(configured: str) -> str:
    with session_scope() as session:
        registry.register_kernels(session, catalogue())
        environment = Environment("580.1", "13.0", "nvrtc", "13.0", "PyCUDA", "default")
        registry.register_device(session, MODEL, "GPU-1", "host", 0, environment)
    return configured


@pytest.fixture
def processes(registered):
    """Five processes that do nothing but maintenance."""
    command = [sys.executable, "-c", LOOP, registered]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(5)]
    for process in started:
        assert process.stdout.readline() == b"ready\n"
    yield started
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.faults
def test_five_processes_fire_each_due_time_once_though_one_is_killed_and_one_frozen(processes):
    with session_scope() as session:
        made = create_schedule(session, every_second())
    first = made.next_at
    last = first + timedelta(seconds=9)

    looked_s = []

    def is_after(moment):
        looked_s.append(time.monotonic())
        with session_scope() as session:
            return schedule(session, made.id).next_at > moment

    def wait_until_fired(moment):
        until(lambda: is_after(moment))

    wait_until_fired(first + timedelta(seconds=3))
    processes[0].kill()
    wait_until_fired(first + timedelta(seconds=5))
    processes[1].send_signal(signal.SIGSTOP)
    wait_until_fired(last)
    with session_scope() as session:
        jobs = session.execute(
            select(models.TuningJob.fire_at, models.TuningJob.engine_id)
            .where(models.TuningJob.fire_at <= last)
            .order_by(models.TuningJob.fire_at)
        ).all()
        fires = session.execute(
            select(models.ScheduleFire).where(models.ScheduleFire.fire_at <= last).order_by(models.ScheduleFire.fire_at)
        )
        rows = list(fires.scalars())
        entries = set(session.scalars(text("SELECT id FROM procrastinate_jobs")))
    due = [first + timedelta(seconds=n) for n in range(10)]
    assert [job.fire_at for job in jobs] == due
    assert [(row.fire_at, row.outcome.value) for row in rows] == [(moment, "fired") for moment in due]
    assert len({job.engine_id for job in jobs} & entries) == 10
    late_s = [(row.created_at - row.fire_at).total_seconds() for row in rows]
    assert min(late_s) >= 0
    # Three processes are left, so nothing waits for the dead; a standing one may hold a fire for FROZEN_S.
    # Nor is any process quicker than this one was let look on, which on a busy machine is seconds.
    stood_s = max(later - sooner for sooner, later in itertools.pairwise(looked_s))
    assert sorted(late_s)[5] < 0.5 + stood_s, late_s


def test_a_process_that_stands_still_in_a_fire_loses_it_to_another(registered):
    with session_scope() as session:
        made = create_schedule(session, every_second(overlap="skip"))
        session.execute(update(models.Schedule).values(next_at=func.now() - timedelta(seconds=1)))
    frozen = firing_session()
    assert next(frozen) >= 1
    with session_scope() as session:
        assert firing.fire_due(session) == 0  # the row is taken
    assert next(frozen) == f"{firing.FROZEN_S:.0f}s"
    with Maintenance(pause_s=0.1):
        until(lambda: has_fired(made.id))
    with pytest.raises(Exception, match="idle-in-transaction"):
        next(frozen)
    with session_scope() as session:
        fired = session.scalars(select(models.ScheduleFire).where(models.ScheduleFire.outcome == "fired")).all()
        jobs = session.scalars(select(models.TuningJob)).all()
    assert (len(fired), len(jobs)) == (1, 1)


def has_fired(schedule_id):
    with session_scope() as session:
        return bool(schedule(session, schedule_id).last_jobs)


def firing_session():
    """Fires, tells how long it may stand still, makes that short, and commits, each step when asked."""
    with session_scope() as session:
        yield firing.fire_due(session)
        allowed = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
        session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '300ms'"))
        yield allowed


def test_the_loop_outlives_tables_that_are_not_there_yet(database_url, registered):
    with session_scope() as session:
        session.execute(text("ALTER TABLE schedules RENAME TO schedules_of_later"))
    with pytest.raises(ProgrammingError, match="schedules"), session_scope() as session:
        firing.seconds_until_due(session)
    with Maintenance(pause_s=0.02) as maintenance:
        threading.Event().wait(0.2)
        with session_scope() as session:
            session.execute(text("ALTER TABLE schedules_of_later RENAME TO schedules"))
            made = create_schedule(session, every_second())
        until(lambda: has_fired(made.id))
        assert maintenance._thread.is_alive()


@EXHAUSTIVE  # a worker and two jobs; test_tune.py and test_schedule_fires.py try the parts
def test_a_scheduled_job_settles_its_winner_again_when_every_trial_is_known(fleet):
    fleet.start_worker()
    fleet.wait_for_device()
    problem = {"kernel": "gemm", "shape": {"m": 24, "n": 16, "k": 20}}
    with fleet.session() as session:
        request = every_second(
            problems=[problem], variants=["tiled"], budget=BudgetRequest(trials=50), overlap="skip", enabled=False
        )
        made = create_schedule(session, request)
        (first,) = run_now(session, made.id)
    done = fleet.wait_for_state(first.id, "done", "failed")
    assert (done.state, done.result["stopped_by"], done.schedule_id) == ("done", "exhausted", made.id)
    with fleet.session() as session:
        (second,) = run_now(session, made.id)
    again = fleet.wait_for_state(second.id, "done", "failed")
    assert (again.state, again.result["stopped_by"], again.trials_done) == ("done", "exhausted", 0)
    assert again.study_id == done.study_id
    assert again.result["finalists"]
    with fleet.session() as session:
        best = session.scalars(select(models.BestConfiguration).order_by(models.BestConfiguration.id)).all()
        delete_schedule(session, made.id)
    before, after = done.result["best"], again.result["best"]
    is_new = len(best) == 2
    if before["configuration"] == after["configuration"]:  # else rounds decide, which are not kept
        assert is_new == (after["ci_ms"][1] < best[0].ci_low_ms)  # what is no faster beyond the noise takes no place
    assert [row.job_id for row in best] == [first.id, second.id][: 1 + is_new]
    assert [row.superseded_by_id for row in best] == [best[-1].id, None][-len(best) :]
