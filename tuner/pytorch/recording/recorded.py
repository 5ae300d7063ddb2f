"""What a recording holds: operators with their tensors, calls and times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.kernels.problem import Problem

MOST_PENDING = 4096
"""Pairs of CUDA events that wait to be read; then the record waits for the GPU, once."""


@dataclass
class Recorded:
    """All calls of one operator with tensors of the same shapes, types and layouts.

    `problem` is None where no kernel computes it, and `reason` says why. Times are those of the GPU for tensors on one,
    else of the calling thread.
    """

    operator: str
    call: str
    device: str
    problem: Problem | None
    reason: str
    calls: int = 0
    time_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Mean time of one call."""
        return self.time_ms / max(self.calls, 1)


@dataclass
class RecordedCalls:
    """What was seen so far; `total_ms` is the time from the beginning to the end of the record."""

    entries: dict[Hashable, Recorded] = field(default_factory=dict)
    total_ms: float = 0.0
    _pending: list[tuple[Recorded, Any, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Recorded]:
        """The entries, those that took longest first."""
        self.settle()
        return iter(sorted(self.entries.values(), key=lambda one: -one.time_ms))

    def share(self, entry: Recorded) -> float:
        """The share of the whole record's time, 0 to 1."""
        return entry.time_ms / self.total_ms if self.total_ms else 0.0

    def add(self, key: Hashable, make: Callable[[], Recorded]) -> Recorded:
        """The entry of that key, with one call more."""
        entry = self.entries.get(key) or self.entries.setdefault(key, make())
        entry.calls += 1
        return entry

    def note(self, entry: Recorded, begun: Any, ended: Any) -> None:
        """Keeps two CUDA events until they can be read."""
        self._pending.append((entry, begun, ended))
        if len(self._pending) >= MOST_PENDING:
            self.settle()

    def settle(self) -> None:
        """Reads the events that are kept."""
        pending, self._pending = self._pending, []
        for entry, begun, ended in pending:
            ended.synchronize()
            entry.time_ms += begun.elapsed_time(ended)
