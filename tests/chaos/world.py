"""What is struck: an API, two workers on devices of their own, their processes, and an embedded PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet import Fleet, command_lines, free_port

from chaos.load import KEYS
from chaos.plan import SETTINGS, Blow
from chaos.witness import Witness
from tilewright.service.operations.access.keys import create_key
from tilewright.service.store import schema
from tilewright.service.store.embedded import EmbeddedPostgres

Undo = Callable[[], object]
RESTART_S = 0.3
"""A process that ended is started again after so long: what systemd or `tilewright up` would do, without its pauses."""

ELSEWHERE = 'mount --bind "$0" /etc/machine-id && exec "$@"'


def machine(id_file: Path) -> tuple[str, ...]:
    """A command's prefix that shows it another machine id, so that its CPU is another device; () where refused."""
    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex + "\n")
    for flags in (("--mount",), ("--mount", "--map-root-user")):
        prefix = ("unshare", *flags, "sh", "-c", ELSEWHERE, str(id_file))
        with suppress(OSError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                return prefix
    return ()


@dataclass
class Kept:
    """A process that is started again whenever it has ended."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes]
    again_at: float | None = None
    is_held_down: bool = False
    exits: Counter[int] = field(default_factory=Counter)

    def look_after(self) -> None:
        status = self.process.poll()
        if status is None or self.is_held_down:
            return
        if self.again_at is None:
            self.exits[status] += 1
            self.again_at = time.monotonic() + RESTART_S
        elif time.monotonic() >= self.again_at:
            self.process, self.again_at = self.start(), None


class World:
    """Everything that runs, and the blows that it can be dealt."""

    def __init__(self, folder: Path) -> None:
        self.witness = Witness.at(folder / "witness")
        self.server = EmbeddedPostgres(folder / "data" / "postgres")
        self.fleet = Fleet(self.server.enter(), folder / "data", is_embedded=True)
        schema.upgrade(self.fleet.url)
        with self.fleet.session() as session:
            self.tokens = {request.name: create_key(session, request).token for request in KEYS}
        self.port = free_port()
        self.prefixes: list[tuple[str, ...]] = [()]
        if elsewhere := machine(folder / "machine-id"):
            self.prefixes.append(elsewhere)
        self.api = self._kept("API", lambda: self.fleet.start_api(self.port, **SETTINGS))
        self.workers = [self._kept(f"worker {n}", self._starter(p)) for n, p in enumerate(self.prefixes)]

    @property
    def kept(self) -> list[Kept]:
        return [self.api, *self.workers]

    def look_after(self) -> None:
        for one in self.kept:
            one.look_after()

    def strike(self, blow: Blow) -> Undo:
        """The fault happens; what is returned undoes it."""
        worker = self.workers[int(blow.which * len(self.workers))]
        what, _, whom = blow.kind.partition(" ")
        if whom.startswith("database"):
            return self._strike_database(what, whom)
        if whom == "a connection's process":
            backends = self._database_pids()[1:]
            _signal(backends[int(blow.which * len(backends)) :][:1], signal.SIGKILL)
            return _nothing
        if what == "restart":
            worker.process.terminate()
            return _nothing
        pids = {
            "API": lambda: [self.api.process.pid],
            "worker": lambda: [worker.process.pid],
            "runner": lambda: _runners(worker.process.pid),
            "worker with all it started": lambda: _descendants(worker.process.pid),
        }[whom]()
        if what == "kill":
            _signal(pids, signal.SIGKILL)
            return _nothing
        return _freeze(pids)

    def _strike_database(self, what: str, whom: str) -> Undo:
        pids = self._database_pids()
        if what == "freeze":
            return _freeze(pids)
        number = {"database": signal.SIGKILL, "database, fast": signal.SIGINT, "database, immediate": signal.SIGQUIT}
        _signal(pids[:1], number[whom])
        return _nothing  # whoever needs it first starts it again

    def _database_pids(self) -> list[int]:
        """The server's first process, then its children; none while it is down."""
        with suppress(OSError, ValueError, IndexError):
            (pid_file,) = self.server.home.glob("**/postmaster.pid")
            postmaster = int(pid_file.read_text().splitlines()[0])
            if Path(f"/proc/{postmaster}/cwd").samefile(pid_file.parent):
                return _descendants(postmaster)
        return []

    def stop(self) -> list[str]:
        """Asks all to end, in order; what is left of them after that, as sentences."""
        for one in self.kept:
            one.is_held_down = True
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGCONT)
                one.process.terminate()
        for one in self.kept:
            one.process.wait(60)
        self.server.stop()
        deadline = time.monotonic() + 15
        while (left := self.left_over()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"left over: process {pid}: {' '.join(words)[:200]}" for pid, words in left]

    def left_over(self) -> list[tuple[int, list[str]]]:
        """Processes that were started for this world, by this world's folder in their environment."""
        own = self.fleet._own()
        return [(pid, [w.decode(errors="replace") for w in words]) for pid, words in own if pid != os.getpid()]

    def _kept(self, name: str, start: Callable[[], subprocess.Popen[bytes]]) -> Kept:
        return Kept(name, start, start())

    def _starter(self, prefix: tuple[str, ...]) -> Callable[[], subprocess.Popen[bytes]]:
        return lambda: self.fleet.start_worker(inside=prefix, **SETTINGS, **self.witness.environment)


@contextmanager
def running(folder: Path) -> Iterator[World]:
    """A world, all of it gone afterwards, whatever happened."""
    world = World(folder)
    try:
        yield world
    finally:
        world.fleet.stop()
        _signal(world._database_pids(), signal.SIGCONT)
        world.server.stop()


def _runners(worker: int) -> list[int]:
    own = set(_descendants(worker))
    return [pid for pid, words in command_lines() if pid in own and b"tilewright.service.worker.job_process" in words]


def _freeze(pids: list[int]) -> Undo:
    _signal(pids, signal.SIGSTOP)
    return lambda: _signal(pids, signal.SIGCONT)


def _nothing() -> None:
    """Nothing to undo."""


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The process and all that it started, parents first."""
    children: dict[int, list[int]] = {}
    for child, _ in command_lines():
        with suppress(OSError, ValueError, IndexError):
            parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found.extend(children.get(one, []))
    return found
