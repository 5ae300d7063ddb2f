"""Workers and what they start killed, frozen, stopped, hung and changed in mid-job: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fleet import QUICK
from recovery import Recovery
from sqlalchemy import select

from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.store import models

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ROW_SUM = Path(__file__).parent / "row_sum"
IMPATIENT = QUICK | {"TILEWRIGHT_STOP_GRACE_S": "1"}
DEFAULTS = {"TILEWRIGHT_HEARTBEAT_S": "10", "TILEWRIGHT_STALLED_AFTER_S": "60", "TILEWRIGHT_STOP_GRACE_S": "20"}


@pytest.fixture
def with_bugs(fleet, gate, monkeypatch):
    """A fleet that knows the kernel with the bugs, and whose worker gives a job one second to stop."""
    gate.open()
    fleet.start_worker(TILEWRIGHT_KERNEL_FOLDERS=f'["{ROW_SUM}"]', TILEWRIGHT_STOP_GRACE_S="1", **gate.environment)
    fleet.wait_for_device()
    fleet.know(ROW_SUM, monkeypatch)
    return fleet


def row_sum(fleet, *variants: str):
    return fleet.request(
        kernel="row_sum", shape={"m": 37, "n": 300}, variants=[*variants], budget=BudgetRequest(trials=100)
    )


def test_sigterm_hands_the_job_back_and_ends_cleanly(working, gate):
    fault = Recovery(
        "worker asked to stop (SIGTERM)",
        "it stops after the running trial, hands the job back and ends with status 0; the next worker goes on",
        "first trial of the next worker, started at once",
    )
    job_id = gate.begin(working, trials=24, done=2, allowed=2)
    gate.open()
    fault.strikes()
    worker = working.workers[0]
    worker.terminate()
    assert worker.wait(working.patience_s) == 0
    waiting = working.job(job_id)
    assert (waiting.state, waiting.phase, waiting.worker) == ("queued", "queued", None)
    working.start_worker(**gate.environment)
    working.assert_finished(job_id, 24, {1, 2})
    working.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(working, job_id, epoch=2)


def test_a_killed_runner_is_followed_by_another(working, gate):
    fault = Recovery(
        "the job's process killed (kill -9)",
        "its worker starts another one after 2 s, which goes on from the last trial",
        "first trial of the new process",
    )
    job_id = gate.begin(working, trials=10, done=2)
    (runner,) = working.runner_pids(job_id)
    fault.strikes()
    os.kill(runner, signal.SIGKILL)
    gate.open()
    working.assert_finished(job_id, 10, {1, 2})
    working.assert_nothing_lost_or_doubled(job_id)
    assert working.workers[0].poll() is None
    fault.is_over_with_a_trial(working, job_id, epoch=2)


def test_a_killed_evaluation_is_its_trials_failure_and_the_job_goes_on(with_bugs):
    fault = Recovery(
        "a kernel's process killed (kill -9), CPU device",
        "the surroundings ended it, so the trial is tried again at once, in a process of its own",
        "next trial after the killed one",
        IMPATIENT,
    )
    job_id = row_sum(with_bugs, "endless", "good")
    evaluation = with_bugs.wait_for_hung_evaluation()
    fault.strikes()
    os.kill(evaluation, signal.SIGKILL)
    with_bugs.wait_for_state(job_id, "done", "failed")
    (killed,) = [trial for trial in with_bugs.trials(job_id) if trial.configuration["variant"] == "endless"]
    assert killed.outcome.value == "timed_out"  # tried again, and not killed from outside that time
    assert {trial.epoch for trial in with_bugs.trials(job_id)} == {1}
    with_bugs.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(with_bugs, job_id, skip=1)  # the first is the failed one itself


def test_a_hung_kernel_is_killed_on_time_and_the_job_goes_on(with_bugs):
    fault = Recovery(
        "a kernel hangs, CPU device",
        "its process is killed after 10 s; the trial is recorded as timed_out",
        "next trial recorded, counted from a second after the hung one began",
        IMPATIENT,
    )
    job_id = row_sum(with_bugs, "endless", "good")
    with_bugs.wait_for_hung_evaluation()
    fault.strikes()
    done = with_bugs.wait_for_state(job_id, "done", "failed")
    (hung,) = [trial for trial in with_bugs.trials(job_id) if trial.configuration["variant"] == "endless"]
    assert (hung.outcome.value, hung.time_ms) == ("timed_out", None)
    assert done.result["best"]["configuration"]["variant"] == "good"
    assert {trial.epoch for trial in with_bugs.trials(job_id)} == {1}
    with_bugs.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(with_bugs, job_id, skip=1)  # the first is the failed one itself


def test_cancel_in_the_middle_of_a_kernel_leaves_no_process_behind(with_bugs):
    fault = Recovery(
        "cancel while a kernel hangs, CPU device",
        "after the grace the job's process is killed, and the kernel's dies with it",
        "job cancelled, no process left",
        IMPATIENT,
    )
    job_id = row_sum(with_bugs, "endless")
    with_bugs.wait_for_hung_evaluation()
    fault.strikes()
    with_bugs.cancel(job_id)
    with_bugs.wait_for_state(job_id, "cancelled", within_s=8)  # well before the kernel's own deadline
    with_bugs.until(lambda: not (with_bugs.evaluation_pids() or with_bugs.runner_pids(job_id)), within_s=2)
    fault.is_over()
    assert with_bugs.trials(job_id) == []
    with_bugs.assert_nothing_lost_or_doubled(job_id)
    after = row_sum(with_bugs, "good")
    assert with_bugs.wait_for_state(after, "done", "failed").state == "done"


def test_a_frozen_worker_that_thaws_is_fenced_off_and_leaves_the_entry_alone(working, gate):
    fault = Recovery(
        "worker frozen, and woken after its job was given away",
        "another worker goes on under a new epoch; the woken one finds itself fenced, writes nothing and ends (75)",
        "first trial of the other worker",
    )
    job_id = gate.begin(working, trials=14, done=2, allowed=5)
    frozen = working.workers[0]
    (runner,) = working.runner_pids(job_id)
    fault.strikes()
    for pid in (frozen.pid, runner):
        os.kill(pid, signal.SIGSTOP)
    gate.open()
    # Another host's worker with the same device: neither lock stops it, as when a virtual machine is paused and
    # started again elsewhere. The epoch alone must do.
    working.free_fleet_lock()
    elsewhere = working.folder / "elsewhere"
    elsewhere.mkdir()
    working.start_worker(**gate.environment, TILEWRIGHT_DATA_DIR=str(elsewhere))
    working.until(lambda: working.job(job_id).epoch == 2)
    working.wait_for_trials(job_id, 7)
    for pid in (runner, frozen.pid):
        os.kill(pid, signal.SIGCONT)
    assert frozen.wait(working.patience_s) == 75
    working.assert_finished(job_id, 14, {1, 2})
    working.assert_nothing_lost_or_doubled(job_id)
    assert working.workers[1].poll() is None
    fault.is_over_with_a_trial(working, job_id, epoch=2)


def test_a_second_worker_on_a_device_is_refused_on_the_same_host_and_on_another(working, gate):
    fault = Recovery(
        "a second worker on one device",
        "it is refused: by a locked file on the same host, by the database on another; the first goes on",
        "both second workers ended",
    )
    job_id = gate.begin(working, trials=6, done=1, allowed=2)
    elsewhere = working.folder / "elsewhere"
    elsewhere.mkdir()
    fault.strikes()
    here = working.start_worker(**gate.environment)
    there = working.start_worker(**gate.environment, TILEWRIGHT_DATA_DIR=str(elsewhere))
    assert (here.wait(working.patience_s), there.wait(working.patience_s)) == (1, 1)
    fault.is_over()
    said = (working.folder / "worker.log").read_text()
    assert "Another process of this host holds the device CPU-" in said
    assert "Another worker, on another host or by another user, serves CPU-" in said
    gate.open()
    working.assert_finished(job_id, 6, {1})
    working.assert_nothing_lost_or_doubled(job_id)


def test_a_job_goes_on_in_a_study_of_its_own_when_the_compiler_has_changed(working, gate):
    fault = Recovery(
        "worker killed (kill -9), and started again with another compiler",
        "the job goes on in the study of the new environment with its whole budget; the old study keeps its trials",
        "first trial in the new study",
    )
    job_id = gate.begin(working, trials=6, done=3, allowed=3)
    old = working.job(job_id).study_id
    fault.strikes()
    working.workers[0].kill()
    gate.open()
    working.start_worker(**gate.environment, FAULT_VERSION="99.1.0")
    done = working.wait_for_state(job_id, "done", "failed")
    assert (done.state, done.trials_done) == ("done", 6)
    assert done.study_id != old
    assert done.result["left_studies"] == [{"study_id": old, "trials": 3}]
    trials = {study: [t for t in working.trials(job_id) if t.study_id == study] for study in (old, done.study_id)}
    assert [(t.number, t.epoch) for t in trials[old]] == [(n, 1) for n in range(3)]
    assert [(t.number, t.epoch) for t in trials[done.study_id]] == [(n, 2) for n in range(6)]
    with working.session() as session:
        (device,) = session.scalars(select(models.Device))
        environment = session.get_one(models.Environment, device.environment_id)
        studied = session.get_one(models.Study, done.study_id)
        bests = session.scalars(select(models.BestConfiguration)).all()
    assert (environment.compiler_version, studied.environment_id) == ("99.1.0", environment.id)
    assert [best.environment_id for best in bests] == [environment.id]
    working.assert_nothing_lost_or_doubled(job_id)
    fault.is_over_with_a_trial(working, job_id, epoch=2)


def test_with_the_default_settings_another_worker_takes_over_within_ninety_seconds(fleet, gate):
    fault = Recovery(
        "worker killed (kill -9), default settings",
        "its processes die with it; its heartbeat is missed, its job is queued again and goes on from the last trial",
        "first trial of the worker that took over",
        DEFAULTS,
    )
    fleet.start_worker(**gate.environment, **DEFAULTS)
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=6, done=3, allowed=3)
    fault.strikes()
    fleet.workers[0].kill()
    gate.open()
    fleet.start_worker(**gate.environment, **DEFAULTS)
    assert fault.is_over_with_a_trial(fleet, job_id, epoch=2) < 90
    fleet.assert_finished(job_id, 6, {1, 2})
    fleet.assert_nothing_lost_or_doubled(job_id)
