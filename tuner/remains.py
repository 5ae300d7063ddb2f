"""Processes that a trial leaves behind: found by a mark in their environment, and ended.

A daemon leaves the session in which a trial is killed. The process that runs trials adopts what loses its parent
there (PR_SET_CHILD_SUBREAPER), so that such a process stays its descendant; other orphans, such as a database that was
started from here, have no mark and stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_MARK = "TILEWRIGHT_TRIAL"
_ROUNDS, _ROUND_S = 20, 0.01
"""A killed process hands its children on to us, and they are found in the next round."""

_numbers = itertools.count()


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process from now on; on other systems than Linux nothing changes."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def new_mark() -> dict[str, str]:
    """The environment variable by which the processes of one trial are known."""
    return {_MARK: f"{os.getpid()}.{next(_numbers)}"}


def end(mark: Mapping[str, str]) -> list[int]:
    """Kills every process with that mark; the process ids."""
    return _end(f"{_MARK}={mark[_MARK]}\0")


def end_all_of(pid: int) -> list[int]:
    """Kills every process that a trial of that process has started, which may be gone itself; the process ids."""
    return _end(f"{_MARK}={pid}.")


def _end(text: str) -> list[int]:
    wanted, ended = text.encode(), list[int]()
    for _ in range(_ROUNDS):
        found = list(_marked(wanted))
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended += [pid for pid in found if pid not in ended]
        time.sleep(_ROUND_S)
    for pid in ended:
        with contextlib.suppress(ChildProcessError):  # its parent was another one
            os.waitpid(pid, os.WNOHANG)
    return ended


def _marked(wanted: bytes) -> Iterator[int]:
    """Living processes of this user with that in their environment; a zombie has none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if wanted in environment + b"\0":
            yield int(folder.name)
