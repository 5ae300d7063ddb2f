"""Locks that allow one worker, and in it one measuring process, for each physical device.

On the host these are locked files; in the database a lock for hosts that share a device's id by mistake (cloned machine
images).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from tilewright.service.errors import ServiceError
from tilewright.service.settings import settings
from tilewright.service.store.session import answering, engine
from tilewright.tuner import child
from tilewright.tuner.devices.local import DeviceEntry

"""After a worker was killed, the kernel and PostgreSQL need up to this long to free its locks."""
JUST_KILLED_S = 5.0
PREDECESSOR_S = 30.0
"""A killed worker's runner dies with it; its last kernel may hold the device some seconds longer."""
POLL_S = 0.1


class DeviceBusyError(ServiceError):
    """Another worker serves this device."""


@contextmanager
def host_lock(device_uuid: str, role: str, *, wait_s: float = JUST_KILLED_S, host_wide: bool = False) -> Iterator[None]:
    """Holds the device on this host in a role (`worker`, `measuring`); DeviceBusyError if taken for `wait_s`.

    The kernel frees it when the holder dies, and with it each child that it gave a device's context: a hung driver call
    outlives SIGKILL. Machines that share one data folder do not share the lock's meaning: the device's id is in its
    name. `host_wide`: against installations with other data folders and other users too.
    """
    folder = settings().data_dir / "locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = hashlib.sha256(device_uuid.encode()).hexdigest()[:32]
    path: Path = folder / f"{name}.{role}"
    with path.open("a+", encoding="utf-8") as file:  # not inherited by children: Python opens files close-on-exec
        if not _until(lambda: _flock(file.fileno()), wait_s):
            raise DeviceBusyError(f"Another process of this host holds the device {device_uuid} ({role}): {path}")
        with _address(name, role, wait_s) if host_wide else nullcontext(enter_result=True) as is_ours:
            if not is_ours:
                raise DeviceBusyError(f"Another installation on this host holds the device {device_uuid} ({role}).")
            with _inherited(file.fileno()):
                yield


@contextmanager
def alone_on(entry: DeviceEntry) -> Iterator[None]:
    """Keeps others on this host from a context on the device in the block; DeviceBusyError if one has it.

    Taken before the device is opened and kept until it is closed. For a slice it takes the whole GPU: its slices share
    clocks and power, and would disturb each other's times.
    """
    with host_lock(entry.physical_uuid, "measuring", wait_s=PREDECESSOR_S, host_wide=entry.kind == "cuda"):
        yield


@contextmanager
def _inherited(descriptor: int) -> Iterator[None]:
    child.HELD.add(descriptor)
    try:
        yield
    finally:
        child.HELD.discard(descriptor)


@contextmanager
def _address(name: str, role: str, wait_s: float) -> Iterator[bool]:
    """Whether the device's abstract address is ours: no file, no owner, and gone with its process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held, _inherited(held.fileno()):
        yield _until(lambda: _bind(held, f"\0tilewright/{name}.{role}"), wait_s)


def _bind(held: socket.socket, address: str) -> bool:
    try:
        held.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FleetLock:
    """The device held in the database, by a connection of its own; `keep` takes it again after a restart there."""

    def __init__(self, device_uuid: str) -> None:
        self.device_uuid = device_uuid
        self.key = _fleet_key(device_uuid)
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        self.keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    @answering()
    def keep(self, *, wait_s: float = JUST_KILLED_S) -> None:
        """Makes sure that the lock is held now.

        Raises DeviceBusyError, and DatabaseUnavailableError while nobody answers.
        """
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
            except Exception:
                self._drop()
                raise
            return
        self._connection = engine().connect().execution_options(isolation_level="AUTOCOMMIT")
        if not _until(self._try, wait_s):
            self._drop()
            raise DeviceBusyError(f"Another worker, on another host or by another user, serves {self.device_uuid}.")

    def _try(self) -> bool:
        assert self._connection is not None  # noqa: S101 - for the type checker
        return bool(self._connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": self.key}))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()  # closed for real: back in the pool it would still hold the lock
            connection.close()


def is_held(session: Session, device_uuid: str) -> bool:
    """Whether some connection holds the device in the database: a worker's, which ends with its process."""
    high, low = divmod(_fleet_key(device_uuid) % (1 << 64), 1 << 32)
    held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND classid = :high"
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    question = text(f"SELECT EXISTS ({held} AND objid = :low AND {here})")
    return bool(session.scalar(question, {"high": high, "low": low}))


def _fleet_key(device_uuid: str) -> int:
    return int.from_bytes(hashlib.sha256(f"device {device_uuid}".encode()).digest()[:8], "big", signed=True)


def _until(holds: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
