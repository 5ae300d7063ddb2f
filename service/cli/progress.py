"""Watching a job until it is over: a bar on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.output import note, notes, warn
from tilewright.service.cli.report import milliseconds
from tilewright.service.client.events import FINISHED
from tilewright.service.operations.answers import JobAnswer

POLL_S = 0.25
LINE_EVERY_S = 5.0
WAITING_AFTER_S = 5.0


def follow(
    read: Callable[[], JobAnswer],
    why_waiting: Callable[[JobAnswer], str | None] = lambda _job: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> JobAnswer:
    """The finished job, after showing its progress.

    While the job is queued, `why_waiting` is called every few seconds; a reason is printed when it is new.
    """
    asked_s, reason = clock(), None
    with _Bar() if notes.is_terminal else _Lines(clock) as display:
        while True:
            job = read()
            display.show(job)
            if job.state in FINISHED:
                break
            if job.state == "queued" and clock() - asked_s > WAITING_AFTER_S:
                asked_s, before, reason = clock(), reason, why_waiting(job)
                if reason and reason != before:
                    warn(reason)
            sleep(POLL_S)
    if job.why_stopped:
        note(f"the search ended early: {job.why_stopped}")
    return job


def _share(job: JobAnswer) -> float:
    """The used share of the budget, 0 to 1, by the limit that will be reached first."""
    trials, seconds = job.budget.get("trials"), job.budget.get("seconds")
    return min(1.0, max(job.trials_done / trials if trials else 0.0, job.elapsed_s / seconds if seconds else 0.0))


def _state(job: JobAnswer) -> str:
    trials = job.budget.get("trials")
    done = f"{job.trials_done} of {trials:.0f} trials" if trials else f"{job.trials_done} trials"
    has_best = job.best_ms is not None and (job.trials_done or job.state in FINISHED)  # else an earlier job's
    best = f"best {milliseconds(job.best_ms or 0.0)}" if has_best else "none measured yet"
    return f"{job.phase}: {done}, {best}"


class _Bar:
    """A bar that fills with the budget."""

    def __init__(self) -> None:
        # 80 columns hold this: what the job is about was said in a line of its own.
        columns = (BarColumn(bar_width=20), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=notes, transient=False)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, job: JobAnswer) -> None:
        """Draws the display anew."""
        share = 1.0 if job.state == "done" else _share(job)
        if self._task is None:
            self._task = self._progress.add_task(describe(job.problem), total=1.0, said="")
        self._progress.update(self._task, completed=share, said=_state(job))


class _Lines:
    """A line whenever the phase changes, and every few seconds while something happens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last, self._last_s, self._phase = clock, "", clock(), ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: the display holds nothing open."""

    def show(self, job: JobAnswer) -> None:
        """Prints the state if it has changed."""
        state = _state(job)
        due = self._clock() - self._last_s >= LINE_EVERY_S
        if job.phase != self._phase or (due and state != self._last):
            note(f"{describe(job.problem)}: {state}")
            self._last, self._last_s, self._phase = state, self._clock(), job.phase
