"""An embedded PostgreSQL: its programs come in a wheel, its data are in the user's data folder.

A server started here outlives the process that started it, until `stop`. Programs that `enter` share the lock
`users.lock`, which the kernel releases when they end, however they end; the last one that leaves regularly stops the
server, whichever started it.

Whether a server is alive is never guessed from a process id, which may be stale or reused. `server.lock` tells: the
server and all of its children inherit the open, locked file, so the kernel releases the lock when the last of them has
ended. Whether the server can be used is found out by connecting to it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
from platformdirs import user_data_path

from tilewright.service.store.embedded_identity import (
    OWN_DATABASE_REMEDY,
    POSTGRES_MAJOR,
    EmbeddedPostgresError,
    Identity,
    binary,
    choose_identity,
    cluster_folder,
    locked,
    share,
    try_lock,
)

__all__ = ["DATABASE", "EmbeddedPostgres", "EmbeddedPostgresError", "binary", "default_home", "leave_servers"]

DATABASE = "tilewright"
SUPERUSER = "postgres"
PORT = 5432  # only part of the socket's name: the server does not listen on TCP
SOCKET = f".s.PGSQL.{PORT}"
SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path has 108, one of them for the final zero
START_TIMEOUT_S = 120.0  # recovery after a crash of a busy server takes seconds, not minutes
STOP_TIMEOUT_S = 20.0
"""A shutdown that takes longer becomes an immediate one, which loses nothing either: PostgreSQL 18.4 never ends a fast
one that reaches it while it recovers from the death of one of its processes."""
LOG_BYTES = 16 << 20  # a longer log is put aside at the next start
POLL_S = 0.05

# Durability stays as PostgreSQL ships it (fsync, full_page_writes, synchronous_commit: all on).
SERVER_SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "autovacuum_naptime": "15s",  # after an import, statistics are there before somebody wonders at a slow page
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


_entered: dict[Path, int] = {}
"""Descriptors that hold `users.lock` for this process, by home."""


def default_home() -> Path:
    """The folder of the embedded server: `postgres` in TILEWRIGHT_DATA_DIR or in the user's data folder."""
    chosen = os.environ.get("TILEWRIGHT_DATA_DIR")
    return (Path(chosen).expanduser() if chosen else user_data_path("tilewright")).absolute() / "postgres"


class EmbeddedPostgres:
    """One PostgreSQL server with its data in `home`; the same server for every process that names the same home."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = default_home() if home is None else home.expanduser().absolute()

    def ensure(self) -> str:
        """The database's address (`postgresql://…`), after starting the server if it did not answer.

        Any number of processes may call this at once; they all get the one server.
        """
        if not self.running():
            self._make_home()
            with locked(self.home / "start.lock"):
                self._bring_up()
        return self._address()

    def enter(self) -> str:
        """The address, as of `ensure`; this process counts among the server's users until it ends or leaves."""
        self._make_home()
        if self.home not in _entered:
            _entered[self.home] = share(self.home / "users.lock")
        return self.ensure()

    def keep(self) -> None:
        """Keeps the server running when its last user leaves; only `stop` stops it then."""
        (self.home / "kept").touch()

    def stop_if_unused(self) -> bool:
        """Stops the server if no process uses it; tells whether it did."""
        if not self.home.is_dir():
            return True
        lock = try_lock(self.home / "users.lock")
        if lock is None:
            return False
        try:
            self.stop()
        finally:
            os.close(lock)
        return True

    def running(self) -> bool:
        """Whether the server accepts connections now."""
        try:
            if not self._socket_path().exists():
                return False
        except PermissionError:  # a folder of somebody else; `ensure` says so
            return False
        address = self._address()
        try:
            psycopg.connect(address, connect_timeout=3).close()
        except psycopg.OperationalError:
            # A server whose connections are all taken answers this question although it refuses another client.
            reply = psycopg.pq.PGconn.ping(f"{address}&connect_timeout=3".encode())
            return reply == psycopg.pq.Ping.OK
        return True

    def stop(self) -> None:
        """Stops the server and disconnects its clients; does nothing when none runs."""
        if not self.home.is_dir():
            return
        with locked(self.home / "start.lock"):
            for how, timeout_s in ((signal.SIGINT, STOP_TIMEOUT_S), (signal.SIGQUIT, 10.0)):
                if self._server_is_gone():
                    return
                self._signal(how)
                if _becomes_true(self._server_is_gone, timeout_s):
                    return
        raise EmbeddedPostgresError(
            f"The server with its data in {self._data} does not stop. It may have been started by another user, in "
            "another container or on another host that shares this folder: stop it there."
        )

    @property
    def _data(self) -> Path:
        return cluster_folder(self.home) / "data"

    def _address(self) -> str:
        # The port is named so that PGPORT in a caller's environment does not lead elsewhere.
        folder = quote(str(self._socket_path().parent), safe="")
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={folder}&port={PORT}"

    def _socket_path(self) -> Path:
        try:
            return Path((self.home / "socket_folder").read_text(encoding="utf-8").strip()) / SOCKET
        except (FileNotFoundError, NotADirectoryError):
            return cluster_folder(self.home) / "socket" / SOCKET

    def _make_home(self) -> None:
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = self.home.stat().st_uid
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The data folder {self.home} cannot be made ({error.strerror}). "
                f"Set TILEWRIGHT_DATA_DIR to a folder that can be written. {OWN_DATABASE_REMEDY}"
            ) from error
        if owner != os.geteuid():
            raise EmbeddedPostgresError(
                f"The data folder {self.home} belongs to user {owner}, and you are user {os.geteuid()}. "
                f"Run as its owner, or set TILEWRIGHT_DATA_DIR to another folder. {OWN_DATABASE_REMEDY}"
            )

    def _bring_up(self) -> None:
        """Returns when the server answers. The caller holds `start.lock`."""
        starts, begun = 0, time.monotonic()
        while not self.running():
            lock = self._server_lock()
            if lock is not None:
                try:
                    if starts == 2:  # twice in a row it went away at once: a third time will not differ
                        raise EmbeddedPostgresError(f"PostgreSQL does not start. {self._log_tail()}")
                    starts += 1
                    self._start(lock)
                finally:
                    os.close(lock)  # closes this copy only: the server's own keeps the lock
            elif self._has_lost_its_socket():
                self._signal(signal.SIGINT)
            elif self._state() == "stopping" and time.monotonic() > begun + STOP_TIMEOUT_S:
                self._signal(signal.SIGQUIT)
            if time.monotonic() > begun + START_TIMEOUT_S:
                raise EmbeddedPostgresError(
                    f"The server with its data in {self._data} runs but does not answer for {START_TIMEOUT_S:.0f} s. "
                    f"{self._log_tail()}"
                )
            time.sleep(POLL_S)

    def _start(self, lock: int) -> None:
        """Starts the server, which inherits `lock`; creates the data first where there are none."""
        if (self.home / "data").exists():  # checked before it may be moved: it may be of another program
            self._check_version(self.home / "data")
        identity = choose_identity(self.home)
        self._make_data(identity)
        socket_folder = self._choose_socket_folder(identity)
        # No process that owned these is alive. The process id in them may be reused by now, and PostgreSQL would
        # refuse to start as long as that process is alive.
        leftovers = (self._data / "postmaster.pid", socket_folder / SOCKET, socket_folder / f"{SOCKET}.lock")
        for stale in (*leftovers, self.home / "kept"):
            stale.unlink(missing_ok=True)
        log = identity.folder / "log"
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.rename(log.with_name("log.previous"))
        settings = {**SERVER_SETTINGS, "unix_socket_directories": str(socket_folder)}
        options = " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
        command = ("pg_ctl", "start", "-w", "-t", f"{START_TIMEOUT_S:.0f}", "-D", "data", "-l", "log", "-o", options)
        with contextlib.suppress(subprocess.TimeoutExpired):  # `_bring_up` goes on waiting, and reports it in the end
            # The exit status is not needed: a server that has ended has released its lock.
            identity.run(command, timeout_s=START_TIMEOUT_S + 10, pass_fds=(lock,))

    def _make_data(self, identity: Identity) -> None:
        """Creates the data folder, whole or not at all: it gets its name when everything is in it."""
        data = identity.folder / "data"
        if data.exists():
            self._check_version(data)
            return
        new = identity.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        # Trust, because in a user namespace the server sees another user than the one who connects, so that it could
        # not compare names; what keeps others out is the socket's folder, which only its owner may enter.
        # The built-in C.UTF-8 sorts alike on every machine, whatever locales that machine has.
        access = ("--auth-local=trust", "--auth-host=reject", f"--username={SUPERUSER}")
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        steps = (
            (("initdb", "-D", "data.new", "--data-checksums", *access, *locale), ""),
            (("postgres", "--single", "-j", "-D", "data.new", "postgres"), f"CREATE DATABASE {DATABASE};\n\n"),
        )
        for command, text_in in steps:
            status, output = identity.run(command, timeout_s=300, text_in=text_in)
            if status != 0:
                raise EmbeddedPostgresError(f"{command[0]} failed in {identity.folder} with status {status}: {output}")
        new.rename(data)

    def _check_version(self, data: Path) -> None:
        try:
            version = (data / "PG_VERSION").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            raise EmbeddedPostgresError(
                f"{data} is not a PostgreSQL data folder (it has no PG_VERSION). Move it away, or set "
                "TILEWRIGHT_DATA_DIR to another folder."
            ) from None
        if version != str(POSTGRES_MAJOR):
            raise EmbeddedPostgresError(
                f"The data in {data} were written by PostgreSQL {version}; this Tilewright brings {POSTGRES_MAJOR}, "
                f"which cannot read them. Copy them over with PostgreSQL {version} (pg_dump there, psql here), "
                f"or move the folder away to begin with no data. {OWN_DATABASE_REMEDY}"
            )

    def _choose_socket_folder(self, identity: Identity) -> Path:
        """A folder for the socket that only its owner may enter, with a path short enough for a socket's address."""
        beside_data = identity.folder / "socket"
        # PostgreSQL and libpq split lists of folders at commas, and more characters are special in one or the other.
        fits = len(os.fsencode(beside_data / SOCKET)) <= SOCKET_PATH_BYTES
        if fits and re.fullmatch(r"[\w/.+~@ -]+", str(beside_data), re.ASCII):
            identity.make_folder(beside_data)
            beside_data.chmod(0o700)
            return beside_data
        recorded = self.home / "socket_folder"
        used = self._socket_path().parent
        if not recorded.exists() or not _is_private(used):
            runtime = os.environ.get("XDG_RUNTIME_DIR", "")
            short = runtime and len(os.fsencode(runtime)) < 60 and Path(runtime).is_dir()
            used = Path(tempfile.mkdtemp(prefix="tilewright-", dir=runtime if short else "/tmp"))  # noqa: S108
            recorded.write_text(f"{used}\n", encoding="utf-8")
        return used

    def _server_lock(self) -> int | None:
        """A descriptor that holds `server.lock`; None while any process of the server is alive."""
        return try_lock(self.home / "server.lock")

    def _server_is_gone(self) -> bool:
        lock = self._server_lock()
        if lock is None:
            return False
        os.close(lock)
        return True

    def _has_lost_its_socket(self) -> bool:
        """Whether the server was ready and its socket was deleted since (cleaners of /tmp, end of a session)."""
        return self._state() == "ready" and not self._socket_path().exists()

    def _state(self) -> str:
        """`starting`, `ready` or `stopping`, as the server wrote it down; "" where it wrote nothing."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            return (self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[7].strip()
        return ""

    def _signal(self, how: signal.Signals) -> None:
        """Sends a signal to the server, if the process of that id really works in our data folder."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((self._data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
            if Path(f"/proc/{pid}/cwd").samefile(self._data):
                os.kill(pid, how)
                os.kill(pid, signal.SIGCONT)  # a stopped process could not react

    def _log_tail(self) -> str:
        log = self._data.with_name("log")
        try:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        except OSError:
            return f"There is no log in {log}."
        return f"The end of {log}:\n" + "\n".join(lines)


def leave_servers() -> None:
    """Ends this process's use of the servers it entered; stops those that no process uses and that are not kept."""
    while _entered:
        home, descriptor = _entered.popitem()
        os.close(descriptor)
        if not (home / "kept").exists():
            EmbeddedPostgres(home).stop_if_unused()


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _becomes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
