"""Child programs kept running: restarted with growing pauses when they end, stopped together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.service import logs
from tilewright.service.cli.output import warn

if TYPE_CHECKING:
    from tilewright.tuner.devices.local import DeviceEntry

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
HEALTHY_AFTER_S = 60.0  # one that lived so long starts again without a pause to speak of
CHECK_S = 0.2
LOG_BYTES = 8 << 20
CLI = ("-P", "-m", "tilewright.service.cli")
PARENT = "TILEWRIGHT_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass
class Program:
    """A child program: its name, its arguments to the interpreter, and its log file (None: it prints where we do)."""

    name: str
    arguments: Sequence[str]
    log: Path | None
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    deaths: int = 0  # in a row, each before it was healthy
    start_at_s: float = field(default=0.0)

    @property
    def is_running(self) -> bool:
        """Whether the worker process runs now."""
        return self.process is not None and self.process.poll() is None

    def log_tail(self, lines: int = 8) -> str:
        """The last lines of its log."""
        try:
            lines_of_log = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log else []
        except FileNotFoundError:
            return ""
        return "\n".join(logs.plain(line) for line in lines_of_log[-lines:])

    def rotate_log(self) -> None:
        """Puts a log aside that is too long: copied and emptied, because the program keeps writing to the same file."""
        with contextlib.suppress(FileNotFoundError):
            if self.log is not None and self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_suffix(".log.previous"))
                os.truncate(self.log, 0)


class Supervisor:
    """Starts programs and keeps them running from a thread of its own, until `stop`."""

    def __init__(
        self,
        programs: Sequence[Program],
        environment: Mapping[str, str] | None = None,
        *,
        on_death: Callable[[Program, int, float], None] | None = None,
    ) -> None:
        self.programs = list(programs)
        self._environment = {**os.environ, **(environment or {}), PARENT: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._on_death = on_death or _say_death
        self._stopping = threading.Event()
        self._draining = False
        self.drained = threading.Event()
        """Set when every program has ended after `drain`."""
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        """Starts every program; returns at once."""
        for program in self.programs:
            _start(program, self._environment)
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Asks every program to end (SIGTERM), kills those still there after `grace_s`, returns when all are gone."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

        running = [program.process for program in self.programs if program.process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + grace_s
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def drain(self) -> None:
        """Asks every program to end when it has nothing to do (SIGUSR1), and starts none again. May be called twice."""
        self._draining = True
        for program in self.programs:
            process = program.process
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Ends every program at once."""
        self.stop(0.0)

    def _watch(self) -> None:
        while not self._stopping.wait(CHECK_S):
            for program in self.programs:
                program.rotate_log()
                self._look_after(program)
            if self._draining and not any(program.is_running for program in self.programs):
                self.drained.set()

    def _look_after(self, program: Program) -> None:
        now = time.monotonic()
        if self._draining:
            return
        if program.process is None:
            if now >= program.start_at_s:
                _start(program, self._environment)
            return
        status = program.process.poll()
        if status is None:
            return
        program.process = None
        program.deaths = 1 if now - program.started_s > HEALTHY_AFTER_S else program.deaths + 1
        pause_s = min(FIRST_PAUSE_S * 2 ** (program.deaths - 1), LONGEST_PAUSE_S)
        program.start_at_s = now + pause_s
        self._on_death(program, status, pause_s)


def worker_program(entry: DeviceEntry, logs: Path) -> Program:
    """The worker of one device of this machine."""
    log = logs / f"worker-{entry.name.replace(':', '-')}.log"
    return Program(f"worker {entry.name}", (*CLI, "worker", "--device", entry.name), log)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside the block SIGTERM raises KeyboardInterrupt, as Ctrl-C does: both stop everything in order."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(program: Program, environment: Mapping[str, str]) -> None:
    with contextlib.ExitStack() as opened:
        log = None
        if program.log is not None:
            program.log.parent.mkdir(parents=True, exist_ok=True)
            program.rotate_log()
            log = opened.enter_context(open(program.log, "ab", opener=_for_the_owner))
        # A session of its own: Ctrl-C reaches the supervisor alone, which then stops the programs in order.
        program.process = subprocess.Popen(
            [sys.executable, *program.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log and subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    program.started_s = time.monotonic()


def _for_the_owner(path: str, flags: int) -> int:
    """Opens a log that nobody else may read: it names kernels, shapes, hosts and callers."""
    opened = os.open(path, flags, 0o600)
    os.fchmod(opened, 0o600)  # one of an earlier version
    return opened


def _say_death(program: Program, status: int, pause_s: float) -> None:
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    where = f" Its log: {program.log}" if program.log else ""
    warn(f"{program.name} ended with {how}; it starts again in {pause_s:.1f} s.{where}")


def end_with_supervisor() -> None:
    """Makes the kernel send this process SIGTERM when the supervisor that started it dies, for whatever reason.

    The signal follows the thread that started us; that one lives until the supervisor stops us anyway.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we could ask
        os.kill(os.getpid(), signal.SIGTERM)
