from __future__ import annotations

import subprocess
import sys

import pytest
from processes import is_running
from waiting import until

from tilewright.tuner.devices.cpu.process import run_limited

ORPHAN = """
import os, sys
from tilewright.tuner.devices.cpu.process import run_limited
os.cpu_count = lambda: 0.05  # two seconds of CPU time, however long they take
run_limited(["sh", "-c", "sh -c 'echo $$ > $0; while :; do :; done' \\"$0\\"; true", sys.argv[1]], timeout_s=20)
"""


@pytest.fixture
def said(tmp_path):
    return tmp_path / "pid"


def test_what_runs_too_long_is_killed_with_all_that_it_started(said):
    script = "sh -c 'echo $$ > $0; exec sleep 600' \"$0\"; true"
    assert run_limited(["sh", "-c", script, str(said)], timeout_s=5.0).code is None  # to begin with, it is written
    until(lambda: not is_running(int(said.read_text())))


def test_an_endless_compiler_of_a_killed_tuner_ends_too(said):
    tuner = subprocess.Popen([sys.executable, "-c", ORPHAN, str(said)])
    until(lambda: said.exists() and said.read_text().endswith("\n"))
    tuner.kill()
    tuner.wait()
    pid = int(said.read_text())
    assert is_running(pid)
    until(lambda: not is_running(pid))  # two seconds of CPU time
