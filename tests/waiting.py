"""Waiting for threads and processes, as long as a machine may take that has much else to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE_S = 60.0
"""A hundred times what an idle machine needs: who hits it hangs."""


def until(look: Callable[[], Seen], told: Callable[[], object] = lambda: "did not happen in time") -> Seen:
    """What `look` returns once it is true; fails with what `told` returns after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)
    return seen


def is_running(pid: int) -> bool:
    """Whether it runs; a zombie does not, it waits for its parent to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False
