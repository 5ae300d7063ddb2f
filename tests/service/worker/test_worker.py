"""A worker on the CPU device: jobs one after the other, cancelled, failed and crashed, and its processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from procrastinate.jobs import Status
from waiting import PATIENCE_S, is_running

from tilewright.service import logs
from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.service.operations.best.results import results
from tilewright.service.operations.jobs.events import events_after
from tilewright.service.operations.jobs.progress import MAX_CRASHES
from tilewright.service.operations.requests import BudgetRequest
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.worker.engine import make_app
from tilewright.service.worker.supervision import _Runner
from tilewright.tuner.child import HELD, Child


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
    assert stopped.result["stopped_by"] == "target"
    assert stopped.study_id == done.study_id
    # More than one where the machine is so busy that the first trial was given up.
    assert [trial.number for trial in working.trials(second)] == list(range(4, 4 + stopped.trials_done))


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


def test_an_entry_that_is_no_longer_ours_is_neither_ended_nor_an_error(database_url, caplog):
    async def handler(*_: object) -> None:
        raise AssertionError

    async def finish() -> None:
        app = make_app(database_url, handler)
        async with app.open_async():
            await app.job_manager.finish_job_by_id_async(4711, Status.SUCCEEDED, delete_job=True)

    with caplog.at_level(logging.WARNING):
        asyncio.run(finish())
    assert "had ended already" in caplog.text


@pytest.mark.parametrize("host_wide", [False, True])
def test_a_child_that_outlives_its_runner_holds_the_device(host_wide):
    gpu = f"GPU-{uuid.uuid4()}"
    with host_lock(gpu, "measuring", host_wide=host_wide):
        child = Child(time.sleep, (60,), dies_with_parent=True, uses_device=True)
        bystander = Child(time.sleep, (60,))
    try:
        assert not HELD
        with pytest.raises(DeviceBusyError, match=gpu), host_lock(gpu, "measuring", wait_s=0, host_wide=host_wide):
            pass
        child.kill()
        with host_lock(gpu, "measuring", wait_s=0, host_wide=host_wide):
            pass
    finally:
        child.kill()
        bystander.kill()


FACTORISED = """
import threading, numpy, tilewright.service.worker
thread = threading.Thread(target=lambda: numpy.linalg.inv(numpy.eye(300)) is not None and print("done"))
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY, reason="the hard limit of stacks is finite"
)
def test_a_thread_of_a_worker_has_room_for_a_prediction():
    command = ["sh", "-c", 'ulimit -s unlimited; exec "$0" -c "$1"', sys.executable, FACTORISED]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


SAYS = r"""
import sys, time
def say(text):
    sys.stderr.buffer.write(text); sys.stderr.flush(); time.sleep(0.05)
say(b'{"time": "2026-01-01T00:00:00.000Z", "message": "in ')
say(b'pieces", "exception": "Traceback\\nValueError: of the test"}\nFatal\0 error: \xff\n')
say(b"without an end")
"""


@pytest.fixture
def log_format(monkeypatch, request):
    monkeypatch.setenv("TILEWRIGHT_LOG_FORMAT", request.param)
    settings.cache_clear()
    root = logging.getLogger()
    level, hook = root.level, sys.excepthook
    logs.configure()
    yield request.param
    monkeypatch.undo()
    settings.cache_clear()
    logs.configure_command()
    root.setLevel(level)
    sys.excepthook = hook
    logging.captureWarnings(capture=False)


async def heard() -> list[str]:
    runner = _Runner(uuid.uuid4(), 1, "cpu")
    runner._process = await asyncio.create_subprocess_exec(sys.executable, "-c", SAYS, stderr=asyncio.subprocess.PIPE)
    await runner._listen()
    await runner._process.wait()
    return runner.crash_report().splitlines()


async def killed() -> tuple[int | None, bool]:
    """The status of a killed runner, and whether a child of it that holds its stderr was still there after that."""
    script = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '600']);"
        "print(child.pid, file=sys.stderr); time.sleep(600)"
    )
    runner = _Runner(uuid.uuid4(), 1, "cpu")
    runner._process = process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    child = int(await process.stderr.readline())
    await runner.kill()
    is_held = is_running(child)
    os.killpg(process.pid, signal.SIGKILL)
    await process.stderr.read()  # to its end, which closes it
    return runner.status, is_held


def test_killing_a_runner_waits_for_nothing_that_it_started():
    assert asyncio.run(killed()) == (-signal.SIGKILL, True)


@pytest.mark.parametrize("log_format", ["text", "json"], indirect=True)
def test_lines_arrive_whole_and_people_read_them_in_the_jobs_error(log_format, capsys):
    words = asyncio.run(heard())
    assert words[1:] == ["in pieces", "Traceback", "ValueError: of the test", "Fatal error: \ufffd", "without an end"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    if log_format == "json":
        assert [json.loads(line)["message"] for line in lines] == ["in pieces", "Fatal error: \ufffd", "without an end"]
    else:
        assert lines[1:] == ["Fatal error: \ufffd", "without an end"]
