from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from tilewright.service.cli.progress import follow
from tilewright.service.operations.answers import JobAnswer, ProblemAnswer

PROBLEM = ProblemAnswer(kernel="gemm", shape={"m": 2, "n": 3, "k": 4}, dtype="float32", options={})


def job(state, phase, trials_done=0, best_ms=None, **more):
    return JobAnswer(
        **more,
        id=UUID(int=7),
        state=state,
        phase=phase,
        problem=PROBLEM,
        device_model="cpu:x",
        device=None,
        compiler=None,
        sampler="tpe",
        variants=None,
        budget={"trials": 10, "seconds": None, "target_ms": None},
        priority=0,
        trials_done=trials_done,
        elapsed_s=0.0,
        best_ms=best_ms,
        study_id=None,
        worker=None,
        epoch=0,
        cancel_requested=False,
        error=None,
        result=None,
        created_at=datetime.now(UTC),
        started_at=None,
        finished_at=None,
    )


def seen(capsys, jobs, why_waiting=lambda _job: None):
    """The finished job and the lines on stderr; the clock goes on a second with every look at it."""
    seconds, answers = count(), iter(jobs)
    last = follow(lambda: next(answers), why_waiting, clock=lambda: float(next(seconds)), sleep=lambda _s: None)
    captured = capsys.readouterr()
    assert captured.out == ""
    return last, captured.err.splitlines()


def test_without_a_terminal_phases_and_the_best_so_far_are_lines(capsys):
    last, lines = seen(
        capsys,
        [job("queued", "queued"), job("running", "searching", 4, 1.5), job("done", "finished", 10, 1.25)],
    )
    assert last.trials_done == 10
    assert lines == [
        "gemm m=2,n=3,k=4 float32: queued: 0 of 10 trials, none measured yet",
        "gemm m=2,n=3,k=4 float32: searching: 4 of 10 trials, best 1.5 ms",
        "gemm m=2,n=3,k=4 float32: finished: 10 of 10 trials, best 1.25 ms",
    ]


def test_a_job_that_nobody_takes_up_is_explained_once_per_reason(capsys):
    reasons = iter(["no worker is running", "no worker is running", *["busy"] * 100])
    waiting = [job("queued", "queued")] * 30
    _, lines = seen(capsys, [*waiting, job("cancelled", "finished")], lambda _job: next(reasons))
    assert [line for line in lines if line.startswith("note")] == ["note no worker is running", "note busy"]


@pytest.mark.parametrize(
    ("stopped_by", "reason"),
    [
        ("exhausted", "every configuration has been tried"),
        ("seconds", "its time budget was used up"),
        ("target", "the target time was reached"),
        ("trials", None),
    ],
)
def test_why_there_are_no_more_trials_is_said(capsys, stopped_by, reason):
    _, lines = seen(capsys, [job("done", "finished", 4, 1.25, stopped_by=stopped_by)])
    assert lines[1:] == ([f"the search ended early: {reason}"] if reason else [])


SHOW = """
import sys
sys.path.insert(0, sys.argv[1])
from test_progress import job
from tilewright.service.cli.progress import follow
states = iter([job("queued", "queued"), *(job("running", "searching", n, 0.01234) for n in range(10))])
follow(lambda: next(states, job("done", "finished", 10, 0.0123)), sleep=lambda _s: None)
"""


@pytest.mark.in_turn(3)
def test_the_bar_is_one_line_on_a_terminal_of_80_columns():
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-c", SHOW, str(Path(__file__).parent)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with subprocess.Popen(words, stderr=stderr, env=environment) as shown:
        os.close(stderr)
        said = b""
        with suppress(OSError):  # how a terminal ends
            while part := os.read(terminal, 4096):
                said += part
    os.close(terminal)
    assert shown.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    lines = [line for line in re.split(r"[\r\n]+", plain) if line]
    assert max(map(len, lines)) <= 80
    assert any(re.fullmatch(r"[━╸╺]{20} finished: 10 of 10 trials, best 0.0123 ms 0:00:\d\d", line) for line in lines)


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_every_end_is_an_end(capsys, state):
    last, _ = seen(capsys, [job(state, "finished")])
    assert last.state == state


def test_a_best_from_before_the_job_began_is_not_shown_as_its_own(capsys):
    states = [job("running", "preparing", 0, 2.5), job("running", "searching", 1, 2.5), job("done", "finished", 2, 1.5)]
    follow(iter(states).__next__, sleep=lambda _seconds: None)
    lines = capsys.readouterr().err
    assert "preparing: 0 of 10 trials, none measured yet" in lines
    assert "best 1.5 ms" in lines
