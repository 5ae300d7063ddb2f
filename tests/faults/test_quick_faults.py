"""Faults that a run of all tests meets: a killed worker, a killed database, wrong kernels, a cancelled compile."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from fleet import QUICK, server_pid
from recovery import Recovery
from waiting import is_running

from tilewright.service.operations.requests import BudgetRequest
from tilewright.tuner.devices.cpu.compile import find_compiler

BUGS = {
    "before_start": "launch_failed",
    "broken": "compile_failed",
    "deadlock": "launch_failed",
    "divergent": "launch_failed",
    "far_out": "launch_failed",
    "past_end": "launch_failed",
    "unwritten": "wrong_result",
    "writes_input": "launch_failed",
    "wrong": "wrong_result",
}
FOLDERS = f'["{Path(__file__).parent / "row_sum"}"]'


@pytest.mark.parametrize("is_waited_for", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_killed_workers_job_is_finished_by_another_with_every_trial_once(working, gate, is_waited_for):
    fault = Recovery(
        "worker killed (kill -9)",
        "its processes die with it; its heartbeat is missed, its job is queued again and goes on from the last trial",
        "first trial of the worker that took over",
    )
    job_id = gate.begin(working, trials=8, done=3)
    assert len(working.runner_pids(job_id)) == 1
    fault.strikes()
    working.workers[0].send_signal(signal.SIGKILL)
    working.until(lambda: not working.runner_pids(job_id))
    if not is_waited_for:
        working.let_silence_last()
    gate.open()
    working.start_worker(**gate.environment)
    working.assert_finished(job_id, 8, {1, 2})
    working.assert_nothing_lost_or_doubled(job_id)
    if is_waited_for:
        fault.is_over_with_a_trial(working, job_id, epoch=2)


@pytest.mark.faults
def test_a_job_lives_through_a_kill_of_the_embedded_database(embedded, gate):
    fault = Recovery(
        "PostgreSQL killed (kill -9), embedded",
        "whoever needs it first starts it again; it recovers, and the running job goes on in the same process",
        "first trial after it",
    )
    fleet, server = embedded
    fleet.start_worker(**gate.environment)
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=8, done=3)
    killed = server_pid(server)
    gate.open()
    fault.strikes()
    os.kill(killed, signal.SIGKILL)
    fleet.assert_finished(job_id, 8, {1})
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert server_pid(server) != killed
    assert fleet.workers[0].poll() is None
    fault.is_over_with_a_trial(fleet, job_id)


@pytest.mark.in_turn(2)  # test_cpu.py and test_isolated.py try each bug without a worker
def test_every_bug_of_a_kernel_is_its_trials_outcome_and_the_job_goes_on(fleet, gate, monkeypatch):
    gate.open()
    fleet.start_worker(TILEWRIGHT_KERNEL_FOLDERS=FOLDERS, **gate.environment)
    fleet.wait_for_device()
    fleet.know(Path(__file__).parent / "row_sum", monkeypatch)
    job_id = fleet.request(
        kernel="row_sum", shape={"m": 37, "n": 300}, variants=["good", *BUGS], budget=BudgetRequest(trials=100)
    )
    done = fleet.wait_for_state(job_id, "done", "failed")
    assert (done.state, done.error, done.result["stopped_by"]) == ("done", None, "exhausted")
    outcomes: dict[str, set[str]] = {}
    for trial in fleet.trials(job_id):
        outcomes.setdefault(trial.configuration["variant"], set()).add(trial.outcome.value)
        assert bool(trial.log) is (trial.outcome.value != "measured")
    assert outcomes == {"good": {"measured"}} | {variant: {outcome} for variant, outcome in BUGS.items()}
    assert {trial.epoch for trial in fleet.trials(job_id)} == {1}
    assert done.result["best"]["configuration"]["variant"] == "good"
    fleet.assert_nothing_lost_or_doubled(job_id)


@pytest.mark.faults
def test_cancel_in_the_middle_of_a_compile_ends_compiler_and_job_within_the_grace(fleet, gate):
    fault = Recovery(
        "cancel while a compiler runs that does not end",
        "after the grace the job's process is killed; the job is cancelled with the trials that it has",
        "job cancelled, compiler gone",
        QUICK | {"TILEWRIGHT_STOP_GRACE_S": "1"},
    )
    fleet.start_worker(TILEWRIGHT_STOP_GRACE_S="1", **gate.environment)
    fleet.wait_for_device()
    job_id = gate.begin(fleet, trials=20, done=2, allowed=2)
    fleet.until(gate.is_waited_at)
    fault.strikes()
    fleet.cancel(job_id)
    ended = fleet.wait_for_state(job_id, "cancelled", within_s=10)
    fleet.until(lambda: not fleet.compiler_pids(), within_s=5)
    fault.is_over()
    fleet.assert_every_trial_once(job_id, 2)
    fleet.assert_nothing_lost_or_doubled(job_id)
    assert ended.finished_at is not None
    assert fleet.workers[0].poll() is None


DAEMON = """#!{python}
import os, subprocess, sys
ended = subprocess.run([*{compiler}, *sys.argv[1:]])
if any(word.endswith("/kernel.cpp") for word in sys.argv):
    heard, said = os.pipe()
    if not os.fork():
        os.setsid()
        if not os.fork():
            with open({said}, "a") as daemons:
                daemons.write(f"{{os.getpid()}}\\n")
            os.write(said, b"1")
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.read(heard, 1)
os._exit(ended.returncode)
"""


@pytest.mark.in_turn(2)  # test_cpu_process.py tries it without a worker
def test_a_compiler_that_leaves_a_daemon_with_the_pipe_open_holds_nobody_up(fleet, gate, tmp_path):
    wrapper, said = tmp_path / "wrapped-c++", tmp_path / "daemons"
    compiler = list(find_compiler().command)
    wrapper.write_text(DAEMON.format(python=sys.executable, compiler=compiler, said=repr(str(said))))
    wrapper.chmod(0o755)
    fleet.start_worker(**gate.environment | {"CXX": str(wrapper)})
    fleet.wait_for_device()
    job_id = fleet.request(trials=3, shape=gate.shape)
    fleet.assert_finished(job_id, 3, {1})
    daemons = [int(line) for line in said.read_text().split()]
    assert len(daemons) >= 3
    fleet.until(lambda: not any(is_running(pid) for pid in daemons))


@pytest.mark.in_turn(3)
def test_a_job_far_beyond_its_seconds_is_stopped_and_keeps_its_trials(fleet, gate):
    gate.allow(2)
    fleet.start_worker(TILEWRIGHT_OVERRUN_S="3", TILEWRIGHT_STOP_GRACE_S="1", **gate.environment)
    fleet.wait_for_device()
    job_id = fleet.request(budget=BudgetRequest(trials=8, seconds=10), shape=gate.shape)
    job = fleet.wait_for_state(job_id, "failed", "done", "cancelled", within_s=45)  # a compiler's own deadline is 60 s
    assert (job.state, "had not ended 3 s after its seconds" in job.error) == ("failed", True)
    assert 1 <= len(fleet.trials(job_id)) <= 2
    fleet.until(lambda: not fleet.runner_pids(job_id) and not fleet.compiler_pids())
