"""PostgreSQL restarted and killed under workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fleet import server_pid
from recovery import Recovery
from sqlalchemy import text

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

DOWN_S = 3.0


def test_a_job_lives_through_a_restart_of_a_shared_database(embedded, gate):
    fault = Recovery(
        f"PostgreSQL stopped for {DOWN_S:.0f} s and started again (clean), shared",
        "the running job waits for it, up to a minute, and goes on in the same process",
        "first trial after it, the time down included",
    )
    fleet, server = embedded
    fleet.is_embedded = False  # an address that somebody else looks after: workers only wait
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    job_id = fleet.request(trials=8, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
    gate.open()
    fault.strikes()
    server.stop()
    stopped = time.monotonic()
    while time.monotonic() < stopped + DOWN_S:
        time.sleep(0.1)
        assert not server.running()  # nobody but its owner starts it
    server.ensure()
    fleet.assert_finished(job_id, 8, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert fleet.workers[0].poll() is None
    fault.is_over_with_a_trial(fleet, job_id)


def test_a_job_lives_through_a_clean_stop_of_the_embedded_database(embedded, gate):
    fault = Recovery(
        "PostgreSQL stopped (clean), embedded",
        "whoever needs it first starts it again; the running job goes on in the same process",
        "first trial after it",
    )
    fleet, server = embedded
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    job_id = fleet.request(trials=8, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 2)
    stopped = server_pid(server)
    gate.open()
    fault.strikes()
    server.stop()
    fleet.assert_finished(job_id, 8, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert server_pid(server) != stopped
    fault.is_over_with_a_trial(fleet, job_id)


def test_an_idle_worker_lives_through_a_kill_of_the_database(embedded, gate):
    fault = Recovery(
        "PostgreSQL killed (kill -9) while no job runs, embedded",
        "the worker starts it again and takes the next job",
        "database answers",
    )
    fleet, server = embedded
    fleet.start_worker(**gate.environment)
    gate.open()
    fleet.wait_for_device()
    fault.strikes()
    os.kill(server_pid(server), signal.SIGKILL)
    fleet.until(lambda: not server.running(), within_s=5)
    fleet.until(server.running)
    fault.is_over()
    job_id = fleet.request(trials=3, shape=gate.shape)
    fleet.assert_finished(job_id, 3, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)


def test_worker_and_database_killed_together(embedded, gate):
    fault = Recovery(
        "worker and PostgreSQL killed together (kill -9), embedded",
        "a new worker starts the database again and goes on from the last trial",
        "first trial of the new worker",
    )
    fleet, server = embedded
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    job_id = fleet.request(trials=10, shape=gate.shape)
    gate.allow(4)
    fleet.wait_for_trials(job_id, 3)
    fault.strikes()
    os.kill(server_pid(server), signal.SIGKILL)
    fleet.workers[0].kill()
    gate.open()
    fleet.start_worker(**gate.environment)
    fleet.assert_finished(job_id, 10, {1, 2})
    fleet.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(fleet, job_id, epoch=2)


HOLDER = """
import os, signal, sys, uuid
from tilewright.service.store import models
from tilewright.service.store.session import session_scope
with session_scope() as session:
    session.get(models.TuningJob, uuid.UUID(sys.argv[1]), with_for_update=True)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_frozen_in_mid_transaction_holds_up_nobody_elses_job(working, gate):
    fault = Recovery(
        "a process frozen in the middle of a transaction that holds a job's row, and that job's worker killed",
        "chores pass over the job; the database ends the transaction after a minute, and then the job is given away",
        "first trial of the worker that took over",
    )
    job_id = working.request(trials=6, shape=gate.shape)
    gate.allow(3)
    working.wait_for_trials(job_id, 2)
    environment = os.environ | {"TILEWRIGHT_DATABASE_URL": working.url}
    command = [sys.executable, "-c", HOLDER, str(job_id)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            fault.strikes()
            working.workers[0].kill()
            gate.open()
            forgotten = working.request(trials=3, shape=gate.shape | {"m": gate.shape["m"] + 400})
            with working.session() as session:  # a chore has to find it
                session.execute(
                    text("DELETE FROM procrastinate_jobs WHERE args->>'job_id' = :job"), {"job": str(forgotten)}
                )
            working.start_worker(**gate.environment)
            assert working.wait_for_state(forgotten, "done", "failed").state == "done"
            assert working.job(job_id).epoch == 1  # still held
            working.assert_finished(job_id, 6, {1, 2})
        finally:
            holder.kill()
    for one in (job_id, forgotten):
        working.assert_nothing_lost_or_doubled(one)
    fault.is_over_with_a_trial(working, job_id, epoch=2)
