"""What a job's process says reaches the worker's log line by line, and its end becomes the job's error."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import uuid

import pytest
from processes import is_running

from tilewright.service import logs
from tilewright.service.settings import settings
from tilewright.service.worker.supervision import _Runner

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
