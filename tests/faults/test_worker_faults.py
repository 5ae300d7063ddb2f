"""Workers and databases killed, frozen and stopped in mid-job: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal

import pytest
from fleet import server_pid

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture
def working(fleet):
    fleet.start_worker()
    fleet.wait_for_device()
    return fleet


def test_sigterm_hands_the_job_back_and_ends_cleanly(working):
    job_id = working.request(trials=10)
    working.wait_for_trials(job_id, 2)
    worker = working.workers[0]
    worker.terminate()
    assert worker.wait(30) == 0
    waiting = working.job(job_id)
    assert (waiting.state, waiting.phase, waiting.worker) == ("queued", "queued", None)
    working.start_worker()
    working.assert_finished(job_id, 10, {1, 2})


def test_a_killed_runner_is_followed_by_another(working):
    job_id = working.request(trials=10)
    working.wait_for_trials(job_id, 2)
    (runner,) = working.runner_pids(job_id)
    os.kill(runner, signal.SIGKILL)
    working.assert_finished(job_id, 10, {1, 2})
    assert working.workers[0].poll() is None


def test_a_frozen_worker_that_thaws_is_fenced_off_and_leaves_the_entry_alone(working):
    job_id = working.request(trials=14)
    working.wait_for_trials(job_id, 2)
    frozen = working.workers[0]
    (runner,) = working.runner_pids(job_id)
    for pid in (frozen.pid, runner):
        os.kill(pid, signal.SIGSTOP)
    # Another host's worker with the same device: neither lock stops it, as when a virtual machine is paused and
    # started again elsewhere. The epoch alone must do.
    working.free_fleet_lock()
    elsewhere = working.folder / "elsewhere"
    elsewhere.mkdir()
    working.start_worker(TILEWRIGHT_DATA_DIR=str(elsewhere))
    working.until(lambda: working.job(job_id).epoch == 2)
    working.wait_for_trials(job_id, 5)
    for pid in (runner, frozen.pid):
        os.kill(pid, signal.SIGCONT)
    assert frozen.wait(60) == 75
    working.assert_finished(job_id, 14, {1, 2})
    assert working.workers[1].poll() is None


def test_an_idle_worker_lives_through_a_kill_of_the_database(embedded):
    fleet, server = embedded
    fleet.start_worker()
    fleet.wait_for_device()
    os.kill(server_pid(server), signal.SIGKILL)
    fleet.until(server.running)
    job_id = fleet.request(trials=3)
    fleet.assert_finished(job_id, 3, {1})


def test_worker_and_database_killed_together(embedded):
    fleet, server = embedded
    fleet.start_worker()
    fleet.wait_for_device()
    job_id = fleet.request(trials=10)
    fleet.wait_for_trials(job_id, 3)
    os.kill(server_pid(server), signal.SIGKILL)
    fleet.workers[0].kill()
    fleet.start_worker()
    fleet.assert_finished(job_id, 10, {1, 2})
