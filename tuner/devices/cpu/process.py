"""One process per evaluation: it may crash, hang or leak, and touches nothing else.

None outlives a killed tuner for long: host programs ask the kernel to be killed with the thread that started them
(host/runner.cpp), which for a conversation must be a long-lived one. A compiler cannot be made to ask, and its driver's
death leaves the compiler proper running; what both have is a limit on CPU time.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.tuner.devices import host_memory
from tilewright.tuner.errors import OutOfMemoryError, TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome

EXIT_USAGE = 64
"""The runner's: it was called wrongly, or the machine refused it memory or a file (host/block.h)."""

LOG_CHARACTERS = 20_000

_LIMITING = ("sh", "-c", 'ulimit -t "$0"; exec "$@"')
"""Sets the limit before the command begins: from here it would be a race, and Python code between fork and exec may
deadlock in a process with threads."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. `code` is negative for a signal, None where its time ran out and it was killed."""

    code: int | None
    output: str
    errors: str
    lacked_memory: bool = False  # the kernel killed it, and has killed for want of memory since it began

    @property
    def log(self) -> str:
        """Its error output, or else its output, cut to the length that a trial keeps."""
        return (self.errors.strip() or self.output.strip())[:LOG_CHARACTERS]


def run_limited(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a command in a session of its own; when the time is over, or on any exception, all of it is killed.

    It, and each of what it starts, also ends by itself after the most CPU time that fits into `timeout_s`.
    """
    kills_before = host_memory.kills()
    process = subprocess.Popen(
        [*_LIMITING, str(math.ceil(timeout_s * (os.cpu_count() or 1)) + 1), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_session(process)
            output, errors = process.communicate()
            return Ended(None, output, errors)
        except BaseException:
            _kill_session(process)
            raise
    return Ended(process.returncode, output, errors, _lacked_memory(process.returncode, kills_before))


def output_of(command: Sequence[str], timeout_s: float) -> str:
    """The output of an evaluation; raises TrialFailure where the kernel failed, TunerError where the runner did."""
    ended = run_limited(command, timeout_s)
    if ended.code != 0:
        raise failure(ended, timeout_s)
    return ended.output


def failure(ended: Ended, timeout_s: float) -> TrialFailure | TunerError:
    """The exception for an evaluation that failed."""
    if ended.code is None:
        return TrialFailure(Outcome.TIMED_OUT, f"killed after {timeout_s:.3g} s\n{ended.log}".strip())
    if ended.code == EXIT_USAGE:
        return TunerError(f"the host runner refused: {ended.errors.strip()}")
    if ended.lacked_memory:
        return OutOfMemoryError(
            "This machine or container ran out of memory, and the kernel killed a process of the CPU device. Choose a "
            "smaller shape, free memory or raise the limit"
        )
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return TrialFailure(Outcome.LAUNCH_FAILED, f"ended by {name}\n{ended.log}".strip())
    return TrialFailure(Outcome.LAUNCH_FAILED, ended.log or f"ended with exit code {ended.code}")


class Conversation:
    """A process that answers each line on its input with lines; it waits, loaded and warm, between questions."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; a pipe could fill up
        self._unread = b""
        self._kills_before = host_memory.kills()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it still waits for questions."""
        return self._process.poll() is None

    def ask(self, question: str, answers: int, timeout_s: float) -> list[str]:
        """That many lines of answer; raises as `output_of` does, and the process is gone then."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):  # it ended; reading tells how
            self._process.stdin.write(question.encode() + b"\n")
        deadline = time.monotonic() + timeout_s
        while self._unread.count(b"\n") < answers:
            received = self._read(deadline - time.monotonic())
            if not received:
                raise failure(self._end(timed_out=received is None), timeout_s)
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n", answers)
        return [line.decode(errors="replace") for line in lines]

    def close(self) -> None:
        """Ends the process."""
        self._end(timed_out=True)

    def _read(self, remaining_s: float) -> bytes | None:
        """What has come: nothing at its end, None where the time is over."""
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        ready, _, _ = select.select([self._process.stdout], [], [], max(remaining_s, 0.0))
        return os.read(self._process.stdout.fileno(), 1 << 16) if ready else None

    def _end(self, *, timed_out: bool) -> Ended:
        if self._errors.closed:
            return Ended(None, "", "")
        if timed_out:
            _kill_session(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        code = self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read(LOG_CHARACTERS).decode(errors="replace")
        self._errors.close()
        output = self._unread.decode(errors="replace")
        return (
            Ended(None, output, errors)
            if timed_out
            else Ended(code, output, errors, _lacked_memory(code, self._kills_before))
        )


def _lacked_memory(code: int, kills_before: int) -> bool:
    return code == -signal.SIGKILL and host_memory.kills() > kills_before


def _kill_session(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
