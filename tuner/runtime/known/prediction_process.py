"""Predictions in a process of their own, so that the program's threads do not wait for the interpreter meanwhile.

A prediction takes about a second of Python in a process that has made none, 90 ms after that.
"""

from __future__ import annotations

import atexit
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.choice import TargetDevice

IDLE_S = 60.0
"""After which the process ends; the next question starts another."""


class PredictionProcess:
    """Answers as `shipped_answer`, from another process that starts with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = ForkSafeLock()

    def answer(self, kernel: Kernel, problem: Problem, place: TargetDevice) -> Mapping[str, Any] | None:
        """The shipped records' prediction, computed here for a user's kernel and where the process cannot be asked."""
        own = {one.name: one.folder for one in catalogue().kernels()}
        if own.get(kernel.name) != kernel.folder:
            return predicted_here(kernel, problem, place)
        with self._lock:
            for is_new in (False, True):  # one that was idle may have ended
                with suppress(OSError, EOFError, pickle.UnpicklingError):
                    return self._asked(kernel.name, problem, place, is_new=is_new)
        return predicted_here(kernel, problem, place)

    def _asked(self, kernel: str, problem: Problem, place: TargetDevice, *, is_new: bool) -> Mapping[str, Any] | None:
        if is_new or self._process is None or self._owner != os.getpid():
            self._process = self._started()
        questions, answers = self._process.stdin, self._process.stdout
        if questions is None or answers is None:
            raise EOFError
        pickle.dump((kernel, problem, place), questions)
        questions.flush()
        answer: Mapping[str, Any] | None = pickle.load(answers)  # noqa: S301 - our own process's
        return answer

    def close(self) -> None:
        """Ends the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[bytes]:
        self.close()
        self._owner = os.getpid()
        path = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the program's
        )


PREDICTIONS = PredictionProcess()
"""The prediction process of this process."""

MOST_AT_ONCE = 8
_AT_ONCE: list[PredictionProcess] = []
_AT_ONCE_LOCK = ForkSafeLock()


@atexit.register
def close() -> None:
    """Ends all prediction processes."""
    for one in (PREDICTIONS, *_AT_ONCE):
        one.close()


def answers_at_once(
    kernel: Kernel, problems: Sequence[Problem], place: TargetDevice
) -> dict[Problem, Mapping[str, Any] | None]:
    """Predictions of several problems, each core's in a process of its own; none where there are too few cores."""
    count = min(len(problems), (len(os.sched_getaffinity(0)) - 1) // 2, MOST_AT_ONCE)
    if count < 2:
        return {}
    with _AT_ONCE_LOCK:
        _AT_ONCE.extend(PredictionProcess() for _ in range(count - len(_AT_ONCE)))
        with ThreadPoolExecutor(count) as threads:
            found = [
                threads.submit(_AT_ONCE[number % count].answer, kernel, problem, place)
                for number, problem in enumerate(problems)
            ]
            return {problem: one.result() for problem, one in zip(problems, found, strict=True)}


def predicted_here(kernel: Kernel, problem: Problem, place: TargetDevice) -> Mapping[str, Any] | None:
    """`shipped_answer`, which is imported with its first call."""
    from tilewright.tuner.runtime.known.shipped import shipped_answer  # noqa: PLC0415 - a program that asks does not need it

    return shipped_answer(kernel, problem, place)


def serve() -> None:
    """Answers questions from standard input until it is closed, or none has come for `IDLE_S`."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what somebody prints is no answer
    while select.select([questions], [], [], IDLE_S)[0]:
        try:
            name, problem, place = pickle.load(questions)  # noqa: S301 - our own process's
        except EOFError:
            return
        pickle.dump(predicted_here(catalogue().get(name), problem, place), answers)
        answers.flush()


if __name__ == "__main__":
    serve()
