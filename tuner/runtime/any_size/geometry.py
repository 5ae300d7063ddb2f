"""The grids of a configuration at every size, and how much memory it takes there."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel, Launch, ceil_div
from tilewright.kernels.space import Configuration

PANEL_GRAIN = 128
"""Rows of a panel are a multiple of it: whole tiles."""


@dataclass(frozen=True)
class Panels:
    """The parts of an axis that are launched one after the other: `count` of `size` each, the last one with `last`."""

    count: int
    size: int
    last: int


class Geometry:
    """Grids and workspaces of one configuration of a family, cached by size."""

    def __init__(self, kernel: Kernel, family: Family, configuration: Configuration) -> None:
        self._kernel, self._family, self._values = kernel, family, configuration.values
        self._variant = kernel.variant(configuration.variant)
        self._launches: dict[int, tuple[Launch, ...]] = {}
        self._interned: dict[tuple[Launch, ...], tuple[Launch, ...]] = {}

    def panels(self, size: int) -> Panels:
        """The axis cut in parts of at most the variant's `most_at_once`, as equal as whole tiles allow."""
        most = self._variant.most_at_once
        if not most or size <= most:
            return Panels(1, size, size)
        each = ceil_div(ceil_div(size, ceil_div(size, most)), PANEL_GRAIN) * PANEL_GRAIN
        count = ceil_div(size, each)
        return Panels(count, each, size - (count - 1) * each)

    def launches(self, size: int) -> tuple[Launch, ...]:
        """Grid, block and shared memory of each launch, for a panel of so many."""
        found = self._launches.get(size)
        if found is None:
            problem = self._family.at(size)
            made = tuple(step for _, step in self._variant.launches(self._kernel.entry, self._values, problem))
            found = self._launches[size] = self._interned.setdefault(made, made)
        return found

    def workspace_bytes(self, size: int) -> int:
        """Bytes of the largest panel's workspace."""
        return self._variant.workspace_bytes(self._values, self._family.at(self.panels(size).size))

    def prepare(self, low: int, high: int) -> None:
        """Computes the launches of all these sizes, and of their panels."""
        for size in range(low, high + 1):
            panels = self.panels(size)
            self.launches(panels.size)
            self.launches(panels.last)
