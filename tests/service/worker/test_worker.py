from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from tilewright.service.operations.best.results import results
from tilewright.service.operations.jobs.events import events_after
from tilewright.service.operations.jobs.progress import MAX_CRASHES
from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.store import models


@pytest.fixture
def working(standing_fleet):
    """A fleet with one worker that has registered; each test has a problem of its own."""
    return standing_fleet


def test_a_worker_takes_jobs_one_after_the_other_and_publishes_their_best(working):
    shape = {"m": 16, "n": 12, "k": 8}
    first = working.request(trials=4, sampler="tpe", shape=shape)
    done = working.wait_for_state(first, "done", "failed")
    assert (done.state, done.error, done.phase) == ("done", None, "finished")
    working.assert_every_trial_once(first, 4)
    assert (done.result["stopped_by"], done.worker.endswith(":cpu")) == ("trials", True)
    with working.session() as session:
        published = results(session).items
        events = events_after(session, first, 0)
    assert done.result["best"]["time_ms"] in [best.time_ms for best in published]
    assert [event.event for event in events] == ["trial"] * 4 + ["state"]
    assert events[-1].is_last
    second = working.request(budget=BudgetRequest(target_ms=1000.0), variants=["tiled"], shape=shape)
    stopped = working.wait_for_state(second, "done", "failed")
    assert (stopped.result["stopped_by"], stopped.trials_done) == ("target", 1)
    assert stopped.study_id == done.study_id
    assert [trial.number for trial in working.trials(second)] == [4]


@pytest.mark.in_turn(2)
def test_a_job_none_of_whose_trials_was_right_has_failed_and_says_why(fleet, monkeypatch):
    folder = Path(__file__).parents[2] / "faults" / "row_sum"
    fleet.start_worker(TILEWRIGHT_KERNEL_FOLDERS=str(folder))
    fleet.wait_for_device()
    fleet.know(folder, monkeypatch)
    job_id = fleet.request(kernel="row_sum", shape={"m": 37, "n": 300}, variants=["wrong", "unwritten"])
    failed = fleet.wait_for_state(job_id, "done", "failed")
    assert (failed.state, failed.trials_done) == ("failed", 2)
    assert failed.error.startswith("None of its trials was right: 2 wrong_result. The last one: ")
    assert failed.result["stopped_by"] == "exhausted"


def test_seconds_that_are_over_while_the_job_is_prepared_end_it(working):
    job_id = working.request(budget=BudgetRequest(seconds=0.001))
    done = working.wait_for_state(job_id, "done", "failed")
    assert (done.error, done.trials_done, done.stopped_by) == (None, 0, "seconds")
    assert done.why_stopped == "its time budget was used up before the first trial"
    assert "seconds were over before its first trial" in (working.folder / "worker.log").read_text()
    working.until(lambda: not working.engine_entries(job_id))


@pytest.mark.in_turn(2)
def test_cancel_stops_after_the_running_trial_and_keeps_the_trials(working):
    shape = {"m": 40, "n": 24, "k": 8}
    job_id = working.request(trials=30, shape=shape)
    working.wait_for_trials(job_id, 2)
    assert working.cancel(job_id).cancel_requested
    ended = working.wait_for_state(job_id, "cancelled")
    working.assert_every_trial_once(job_id, ended.trials_done)
    assert 2 <= ended.trials_done < 30
    working.until(lambda: not working.runner_pids(job_id))
    again = working.request(trials=30, shape=shape)
    assert again != job_id  # a cancelled job is not joined
    working.cancel(again)


def test_the_log_says_that_a_job_crashed_and_what_happens_next(working):
    job_id = working.request(shape={"m": 8, "n": 12, "k": 16})
    for crashes in (MAX_CRASHES - 2, MAX_CRASHES - 1):  # in a row without a trial; the row keeps count
        (runner,) = working.until(lambda: working.runner_pids(job_id))
        with working.session() as session:
            session.get(models.TuningJob, job_id).crashes = crashes
        os.kill(runner, signal.SIGKILL)
        working.until(lambda pid=runner: pid not in working.runner_pids(job_id))
    failed = working.wait_for_state(job_id, "failed")
    assert failed.error.startswith("The runner ended with signal SIGKILL.")
    said = [line.partition("supervision: ")[2] for line in working.said().splitlines() if "WARNING" in line]
    crashed = f"The process of job {job_id} crashed. The runner ended with signal SIGKILL."
    assert [line.partition(" [")[0] for line in said if str(job_id) in line] == [
        crashed,
        f"Job {job_id} is tried again in 2 s.",
        crashed,
        f"Job {job_id} has failed and is not tried again.",
    ]


@pytest.mark.faults
def test_a_worker_that_cannot_serve_its_device_says_why(working):
    second, third = working.start_worker(), working.start_worker("cuda:99")
    assert (second.wait(PATIENCE_S), third.wait(PATIENCE_S)) == (1, 1)
    said = (working.folder / "worker.log").read_text()
    assert "holds the device CPU-" in said
    assert "There is no device 'cuda:99'" in said
    assert working.workers[0].poll() is None
