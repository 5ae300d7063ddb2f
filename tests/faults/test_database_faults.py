"""Faults of the database, of the network before it, and of the API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime

import pytest
from chaos.world import machine
from fleet import Fleet, free_port, server_pid
from recovery import Recovery
from sqlalchemy import select, text

from tilewright.service.client import Client
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.store import embedded, models, schema

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
    job_id = gate.begin(fleet, trials=8, done=2)
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
    job_id = gate.begin(fleet, trials=8, done=2)
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
    job_id = gate.begin(fleet, trials=10, done=3)
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
    job_id = gate.begin(working, trials=6, done=2, allowed=3)
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


@pytest.fixture
def apart(network, tmp_path, monkeypatch, gate):
    """A fleet whose database listens to the network, and what starts its worker on the other machine."""
    monkeypatch.setitem(embedded.SERVER_SETTINGS, "listen_addresses", network.address)
    server = embedded.EmbeddedPostgres(tmp_path / "postgres")
    fleet = Fleet(server.ensure(), tmp_path)
    access = next(server.home.glob("**/pg_hba.conf"))
    access.write_text(f"host all all {network.address}/30 trust\n" + access.read_text())
    server.stop()
    server.ensure()
    schema.upgrade(fleet.url)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other_machine = machine(tmp_path / "machine-id")
    if not other_machine:
        pytest.skip("a mount namespace is refused here")
    address = f"postgresql://{embedded.SUPERUSER}@{network.address}:{embedded.PORT}/{embedded.DATABASE}"
    there = {"TILEWRIGHT_DATABASE_URL": address, "TILEWRIGHT_DATA_DIR": str(elsewhere), **gate.environment}

    def start_there(*, on_the_network: bool = True):
        """A worker with the other machine's device: on that machine, or on one that has replaced it, here."""
        inside = (*network.inside, *other_machine) if on_the_network else other_machine
        return fleet.start_worker(inside=inside, **there)

    yield fleet, start_there
    network.mend()
    fleet.stop()
    server.stop()


def test_a_worker_that_is_cut_off_loses_its_job_and_nothing_else(apart, network, gate):
    fault = Recovery(
        "network cut between worker and database, and mended",
        "another worker goes on under a new epoch; the cut off one finds itself fenced, writes nothing and ends (75)",
        "first trial of the other worker",
    )
    fleet, start_there = apart
    cut_off = start_there()
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=10, done=2)
    fault.strikes()
    network.cut()
    fleet.start_worker(**gate.environment)
    fleet.until(lambda: fleet.job(job_id).epoch == 2)
    gate.open()
    fleet.wait_for_trials(job_id, 7)
    network.mend()
    assert cut_off.wait(fleet.patience_s) == 75
    fleet.assert_finished(job_id, 10, {1, 2})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert fleet.workers[1].poll() is None
    fault.is_over_with_a_trial(fleet, job_id, epoch=2)


def test_a_device_whose_host_went_away_without_a_word_can_be_served_again(apart, network, gate):
    fault = Recovery(
        "host lost without a word (network cut, then killed), its device served again",
        "the database lets go of the lost host's lock when its keepalives fail; until then a new worker is refused",
        "new worker registered",
    )
    fleet, start_there = apart
    gate.open()
    lost = start_there()
    fleet.wait_for_device()
    fault.strikes()
    network.cut()
    lost.kill()
    again = [start_there(on_the_network=False)]

    def serves() -> bool:
        if again[-1].poll() is not None:  # refused; its service manager starts it again
            again.append(start_there(on_the_network=False))
        with fleet.session() as session:
            worker = session.scalars(select(models.Device.worker)).one()
        return f":{again[-1].pid}:" in worker

    fleet.until(serves)
    fault.is_over()
    assert len(again) > 1  # the lost host's lock did hold for a time
    job_id = fleet.request(trials=3, shape=gate.shape)
    fleet.assert_finished(job_id, 3, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)


def test_a_killed_api_loses_no_job_and_its_readers_miss_no_event(working, gate):
    fault = Recovery(
        "API killed (kill -9), and started again two trials later",
        "jobs go on; a reader resumes after the last event that it saw; a repeated request is the same job",
        "first event that the reader gets from the new API",
    )
    port = free_port()
    api = working.start_api(port)
    heard = []

    def follow(job_id):
        with Client(f"http://127.0.0.1:{port}") as reader:
            heard.extend((datetime.now(UTC), event) for event in reader.events(job_id, reconnects=240))

    with Client(f"http://127.0.0.1:{port}") as client:
        working.until(client.is_ready)
        request = JobRequest(
            kernel="gemm", shape=gate.shape, variants=["naive"], sampler="random", budget=BudgetRequest(trials=12)
        )
        job, is_new = client.request_job(request, idempotency_key="once")
        assert is_new
        gate.allow(3)
        following = threading.Thread(target=follow, args=(job.id,))
        following.start()
        working.until(lambda: len(heard) >= 2)
        fault.strikes()
        api.kill()
        api.wait()
        before = working.job(job.id).trials_done
        gate.open()
        working.wait_for_trials(job.id, before + 2)  # nobody answers, the job goes on
        working.start_api(port)
        working.until(client.is_ready)
        assert client.request_job(request, idempotency_key="once") == (client.job(job.id), False)
        following.join(working.patience_s)
        assert not following.is_alive()
        working.assert_finished(job.id, 12, {1})
        numbers = [event.data["number"] for _, event in heard if event.event == "trial"]
        assert numbers == list(range(12))
        assert heard[-1][1].data["state"] == "done"
    working.assert_nothing_lost_or_doubled(job.id)
    fault.is_over(min(at for at, _ in heard if at > fault.struck_at))
