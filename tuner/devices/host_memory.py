"""Memory of this machine: how much is available, and which processes the kernel kills when it runs out.

Everything is read below `root`, which is another folder than `/` in tests only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_KILLED_FIRST = 500
"""Half of all memory is added to what a process holds when the kernel chooses: ahead of any API, worker or database."""

_ROOT = Path("/")


class _Control(NamedTuple):
    """A version of control groups: its mount point, its files, and the name of its count of droppable pages."""

    mount: str
    limit: str
    used: str
    droppable: str
    events: str


_CONTROLS = {
    "": _Control("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "memory.events"),
    "memory": _Control(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "memory.oom_control",
    ),
}
"""Control groups by the controllers that /proc/self/cgroup names: none in version 2, memory in version 1."""


def available_bytes(root: Path = _ROOT) -> int:
    """Memory that this process may still take: the machine's available part, or what its control groups leave of it."""
    free = _number("MemAvailable:", root / "proc/meminfo")
    left = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else free * 1024]
    for control, folder in _groups(root):
        limit, used = _number("", folder / control.limit), _number("", folder / control.used)
        if limit is not None and used is not None:  # a limit may be the word "max"
            left.append(limit - used + (_number(control.droppable, folder / "memory.stat") or 0))
    return max(0, min(left))


def kills(root: Path = _ROOT) -> int:
    """How many processes the kernel has killed for lack of memory: in our control group, or else on this machine."""
    files = [*(folder / control.events for control, folder in _groups(root)), root / "proc/vmstat"]
    return next((count for count in (_number("oom_kill", file) for file in files) if count is not None), 0)


def be_killed_first() -> None:
    """Makes the kernel kill this process and its children before the service's own where memory runs out."""
    chosen = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):  # no Linux: its own rules
        chosen.write_text(str(max(_KILLED_FIRST, int(chosen.read_text(encoding="ascii")))), encoding="ascii")


def _groups(root: Path) -> Iterator[tuple[_Control, Path]]:
    """Our control groups for memory, the innermost first.

    In a container the path may be the host's while our own group lies at the mount: folders that are not there tell
    nothing.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        control = _CONTROLS.get(controllers)
        if control is not None:
            parts = [part for part in path.split("/") if part not in {"", ".."}]
            for depth in range(len(parts), -1, -1):
                yield control, (root / control.mount).joinpath(*parts[:depth])


def _number(name: str, file: Path) -> int | None:
    """The number after the name at the start of a line; None where there is none."""
    match = re.search(rf"^{name}\s*(\d+)\b", _text(file), re.MULTILINE)
    return int(match[1]) if match else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
