from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from uuid import UUID

import pytest

from tilewright.service.cli.progress import follow
from tilewright.service.operations.answers import JobAnswer, ProblemAnswer

PROBLEM = ProblemAnswer(kernel="gemm", shape={"m": 2, "n": 3, "k": 4}, dtype="float32", options={})


def job(state, phase, trials_done=0, best_ms=None):
    return JobAnswer(
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


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_every_end_is_an_end(capsys, state):
    last, _ = seen(capsys, [job(state, "finished")])
    assert last.state == state
