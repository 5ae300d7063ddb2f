"""One process per evaluation: it may crash, hang or leak, and touches nothing else.

None outlives a killed tuner for long: host programs ask the kernel to be killed with the thread that started them
(host/runner.cpp), which for a conversation must be a long-lived one. A compiler cannot be made to ask, and its driver's
death leaves the compiler proper running; what both have is a limit on CPU time.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.tuner import remains, sandbox
from tilewright.tuner.devices import host_memory
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.outcome import Outcome

EXIT_USAGE = 64
"""The runner's: it was called wrongly, or the machine refused it memory or a file (host/block.h)."""

LOG_CHARACTERS = 20_000

CAPTURED_BYTES = 1 << 20
"""Kept of what a process says on each of its outputs; a kernel that prints without end fills no memory."""

_READ_BYTES, _LEFT_IN_A_PIPE_BYTES = 1 << 16, 1 << 20  # the second: what a pipe can hold at most by default

_KILL_WAIT_S, _LAST_WORDS_S = 10.0, 5.0

COMPILER_BYTES, COMPILER_FILE_BYTES = 4 << 30, 1 << 29
"""Memory of each process of a compiler, and of a file that it writes: g++ takes 0.2 GB for the largest kernels here."""

_LITTLE_BYTES = 1 << 30
"""The free memory below which the machine lacks it, rather than a process having met its limit."""

_STATUS_OF_SIGNALS = 128
"""The number that the sandbox's process adds to a signal that ended the one inside."""


_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
"""Signals that say that somebody else ended a process: a program that fails by itself gets others."""

_STARVED_S, _STARVED_RATIO = 5.0, 4
"""A process whose deadline is over, and that waited so long and so many times as long as it ran, may be fast where
there is a processor for it."""

_LACKING = re.compile(
    r"^.*(?:No space left on device|Disk quota exceeded|Resource temporarily unavailable"
    r"|Killed signal terminated program).*$",
    re.MULTILINE | re.IGNORECASE,
)
_LACKING_MEMORY = re.compile(
    r"^.*(?:Cannot allocate memory|virtual memory exhausted|out of memory allocating).*$", re.MULTILINE | re.IGNORECASE
)
"""Messages of compilers, linkers and the host runner when the machine lacks something."""


@dataclass(frozen=True)
class Ended:
    """How a process ended. `code` is negative for a signal, None where its time ran out and it was killed."""

    code: int | None
    output: str
    errors: str
    lacked_memory: bool = False  # the kernel killed it, and has killed for want of memory since it began
    starved_s: float = 0.0  # of a process whose time ran out: how long it waited for a processor

    @property
    def interruption(self) -> str | None:
        """The cause outside of the process that ended it, in words; None where it ended by itself."""
        if self.lacked_memory:
            return "this machine or container ran out of memory, and the kernel killed it"
        if self.code is not None and -self.code in _FROM_OUTSIDE:
            return f"it was ended from outside by {signal.Signals(-self.code).name}"
        if self.code is None and self.starved_s >= _STARVED_S:
            return f"it waited {self.starved_s:.3g} s of its time for a processor"
        if self.code == 0:
            return None
        lacking = _LACKING.search(self.errors)
        if lacking is None and host_memory.available_bytes() < _LITTLE_BYTES:
            lacking = _LACKING_MEMORY.search(self.errors)
        return None if lacking is None else lacking[0].strip()

    @property
    def log(self) -> str:
        """The process's error output, or else its output, cut to the length that a trial keeps."""
        return (self.errors.strip() or self.output.strip())[:LOG_CHARACTERS]


@dataclass(frozen=True)
class Allowance:
    """Limits of a process and the files that it sees: see `sandbox`. Memory None: no limit."""

    memory_bytes: int | None = COMPILER_BYTES
    file_bytes: int = COMPILER_FILE_BYTES
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    is_compiler: bool = False


def run_limited(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    allowance: Allowance | None = None,
) -> Ended:
    """Runs a command in a session of its own, and kills all of it at its end, at the time limit, or on any exception.
    that session is killed, and what left it as far as `remains` finds it.

    With an allowance it runs in the sandbox, with a small environment, and under these limits.
    It, and each of what it starts, also ends by itself after the most CPU time that fits into `timeout_s`. Nobody waits
    for a process that it left behind with its output open, and of each output at most CAPTURED_BYTES are kept.
    """
    kills_before = host_memory.kills()
    mark = remains.new_mark()
    process = subprocess.Popen(
        _bounded(command, allowance, math.ceil(timeout_s * (os.cpu_count() or 1)) + 1),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=_environment(environment, allowance) | mark,
        start_new_session=True,
    )
    try:
        listening = _Listening(process)
        has_ended = listening.until_ended(time.monotonic() + timeout_s)
        starved_s = 0.0 if has_ended else _starved_s(process.pid)
    finally:
        _kill_session(process)
        code = reaped(process)
    output, errors, are_shut = listening.said()
    if not are_shut:
        remains.end(mark)
    if not has_ended:
        return Ended(None, output, errors, starved_s=starved_s)
    return _ended(code, output, errors, kills_before)


def _bounded(command: Sequence[str], allowance: Allowance | None, cpu_s: int | None) -> list[str]:
    if allowance is None:
        return sandbox.limited(command, cpu_s=cpu_s, file_bytes=COMPILER_FILE_BYTES, memory_bytes=None)
    inside = sandbox.confined(command, reads=allowance.reads, writes=allowance.writes)
    return sandbox.limited(inside, cpu_s=cpu_s, file_bytes=allowance.file_bytes, memory_bytes=allowance.memory_bytes)


def _environment(given: Mapping[str, str] | None, allowance: Allowance | None) -> dict[str, str]:
    if allowance is None:
        return {**os.environ, **(given or {})}
    return sandbox.environment(given or {}, is_compiler=allowance.is_compiler)


def _ended(code: int, output: str, errors: str, kills_before: int) -> Ended:
    """The end of the process, by its own status or that of the sandbox around it."""
    if code > _STATUS_OF_SIGNALS and sandbox.is_on():
        code = _STATUS_OF_SIGNALS - code
    return Ended(code, output, errors, _lacked_memory(code, kills_before))


class _Listening:
    """The output of a process on its two pipes, until it has ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - both are pipes
        self._pipes = process.stdout, process.stderr
        self._kept = {pipe.fileno(): bytearray() for pipe in self._pipes}
        self._open = set(self._kept)
        self._end = os.pidfd_open(process.pid)
        for number in self._kept:
            os.set_blocking(number, False)

    def until_ended(self, deadline: float) -> bool:
        """Whether the process ended before the deadline; others that hold its pipes do not count."""
        with selectors.DefaultSelector() as selector:
            for number in (*self._kept, self._end):
                selector.register(number, selectors.EVENT_READ)
            while (left_s := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left_s)}
                for number in ready & self._open:
                    if not self._read(number):
                        selector.unregister(number)
                if self._end in ready:
                    return True
        return False

    def said(self) -> tuple[str, str, bool]:
        """Output, errors, and whether all pipes are closed, so that nothing more can come; closes our ends."""
        for number in list(self._open):
            for _ in range(_LEFT_IN_A_PIPE_BYTES // _READ_BYTES):  # what somebody goes on writing has no end
                if not self._read(number):
                    break
        for pipe in self._pipes:
            pipe.close()
        os.close(self._end)
        output, errors = (bytes(kept).decode(errors="replace") for kept in self._kept.values())
        return output, errors, not self._open

    def _read(self, number: int) -> bool:
        """Whether anything was read; keeps it as far as there is room."""
        try:
            received = os.read(number, _READ_BYTES)
        except BlockingIOError:
            return False
        if not received:
            self._open.discard(number)
        kept = self._kept[number]
        kept += received[: CAPTURED_BYTES - len(kept)]
        return bool(received)


def reaped(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a process that has ended or was killed; raises TunerError where it outlives that."""
    try:
        return process.wait(_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        raise TunerError(f"process {process.pid} is still there {_KILL_WAIT_S:.0f} s after SIGKILL") from None


def output_of(command: Sequence[str], timeout_s: float, allowance: Allowance | None = None) -> str:
    """The output of an evaluation; raises TrialFailure where the kernel failed, TunerError where the runner did."""
    ended = run_limited(command, timeout_s, None, allowance)
    if ended.code != 0:
        raise failure(ended, timeout_s)
    return ended.output


def failure(ended: Ended, timeout_s: float) -> TrialFailure | TunerError:
    """The exception for an evaluation that failed."""
    if (interruption := ended.interruption) is not None:
        return TrialFailure(Outcome.INTERRUPTED, f"interrupted: {interruption}\n{ended.log}".strip())
    if ended.code is None:
        return TrialFailure(Outcome.TIMED_OUT, f"killed after {timeout_s:.3g} s\n{ended.log}".strip())
    if ended.code == EXIT_USAGE:
        return TunerError(f"the host runner refused: {ended.errors.strip()}")
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return TrialFailure(Outcome.LAUNCH_FAILED, f"ended by {name}\n{ended.log}".strip())
    return TrialFailure(Outcome.LAUNCH_FAILED, ended.log or f"ended with exit code {ended.code}")


class Conversation:
    """A process that answers each line on its input with lines; it waits, loaded and warm, between questions."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; a pipe could fill up
        self._unread = b""
        self._kills_before = host_memory.kills()
        self._mark = remains.new_mark()
        self._process = subprocess.Popen(
            _bounded(
                command, allowance, None
            ),  # under a limit its clock would tell ticks; its questions have deadlines
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=_environment(environment, allowance) | self._mark,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Whether the process still waits for questions."""
        return self._process.poll() is None

    def ask(self, question: str, answers: int, timeout_s: float) -> list[str]:
        """The answer's lines, as many as asked for; raises as `output_of` does, and the process is gone then."""
        if self._unread or self._is_readable(0.0):
            unasked = self._unread or self._read(0.0)
            if unasked:
                self.close()
                raise TrialFailure(Outcome.WRONG_RESULT, "it wrote answers of its own where its times are read")
        self.tell(question)
        deadline = time.monotonic() + timeout_s
        while self._unread.count(b"\n") < answers:
            received = self._read(deadline - time.monotonic())
            if not received:
                raise failure(self._end(timed_out=received is None), timeout_s)
            self._unread += received
        *lines, self._unread = self._unread.split(b"\n", answers)
        return [line.decode(errors="replace") for line in lines]

    def tell(self, words: str) -> None:
        """Sends the process a line that has no answer."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):  # it ended; reading tells how
            self._process.stdin.write(words.encode() + b"\n")

    def close(self) -> None:
        """Ends the process."""
        self._end(timed_out=True)

    def _read(self, remaining_s: float) -> bytes | None:
        """The bytes that have come: none at the end, None where the time is over."""
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        return os.read(self._process.stdout.fileno(), 1 << 16) if self._is_readable(remaining_s) else None

    def _is_readable(self, remaining_s: float) -> bool:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        ready, _, _ = select.select([self._process.stdout], [], [], max(remaining_s, 0.0))
        return bool(ready)

    def _is_shut(self) -> bool:
        """Whether the output has no other holder; closes it."""
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        with self._process.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)
            try:
                return any(not os.read(pipe.fileno(), _READ_BYTES) for _ in range(_LEFT_IN_A_PIPE_BYTES // _READ_BYTES))
            except BlockingIOError:
                return False

    def _end(self, *, timed_out: bool) -> Ended:
        if self._errors.closed:
            return Ended(None, "", "")
        starved_s = _starved_s(self._process.pid) if timed_out else 0.0
        if timed_out:
            _kill_session(self._process)
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has shut its output, and may go on all the same
            self._process.wait(_LAST_WORDS_S)
        _kill_session(self._process)
        code = reaped(self._process)
        if not self._is_shut():
            remains.end(self._mark)
        self._errors.seek(0)
        errors = self._errors.read(LOG_CHARACTERS).decode(errors="replace")
        self._errors.close()
        output = self._unread.decode(errors="replace")
        return (
            Ended(None, output, errors, starved_s=starved_s)
            if timed_out
            else _ended(code, output, errors, self._kills_before)
        )


def _starved_s(session: int) -> float:
    """Seconds that a process of the session waited for a processor while it got hardly any; 0 where none did."""
    waited_s = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session:
                ran, waited, _ = map(int, (folder / "schedstat").read_text(encoding="ascii").split())
                if waited > _STARVED_RATIO * ran:
                    waited_s = max(waited_s, waited / 1e9)
    return waited_s


def _lacked_memory(code: int, kills_before: int) -> bool:
    return code == -signal.SIGKILL and host_memory.kills() > kills_before


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
