"""Processes of a worker: who holds a device, what the engine is told, and room for threads."""

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

import pytest
from procrastinate.jobs import Status
from waiting import is_running

from tilewright.service import logs
from tilewright.service.device_lock import DeviceBusyError, host_lock
from tilewright.service.settings import settings
from tilewright.service.worker.engine import make_app
from tilewright.service.worker.supervision import _Runner
from tilewright.tuner.child import HELD, Child


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
