"""How a launch divides the axes of a problem into tiles, found by asking it for other shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration

Extents = tuple[int, ...]
"""A tile: its size along each axis of the kernel, 0 along one that is not divided."""

LARGEST = 2**14
"""An axis that needs no second tile at this size counts as not divided."""


@dataclass(frozen=True)
class Tiling:
    """A problem under one configuration. What is left of it along axes that are not divided may be split once more."""

    count: int  # of tiles
    parts: int  # that blocks do: tiles, times the blocks of one
    whole: Problem  # one tile that sticks out nowhere


@dataclass(frozen=True)
class Tiles:
    """The tiles of one kernel's configurations; all problems asked about have one dtype and the same options.

    The grid alone does not tell them where each block does several, and parameters mean what a source makes of them.
    """

    kernel: Kernel
    _extents: dict[Configuration, Extents] = field(default_factory=dict)
    _asked: dict[tuple[str, int], Problem] = field(default_factory=dict)

    def extents(self, problem: Problem, configuration: Configuration) -> Extents:
        """By axis the largest size that takes no more blocks than size 1 does, the other axes being 1."""
        extents = self._extents.get(configuration)
        if extents is None:
            try:
                extents = tuple(self._extent(problem, configuration, axis) for axis, _ in problem.axes)
            except (ArithmeticError, LookupError, ValueError):  # a launch that is not defined for such shapes
                extents = (0,) * len(problem.axes)
            self._extents[configuration] = extents
        return extents

    def tiling(self, problem: Problem, configuration: Configuration) -> Tiling:
        """How many tiles and parts the problem has."""
        extents, sizes = self.extents(problem, configuration), [size for _, size in problem.axes]
        count = math.prod(-(-size // tile) for size, tile in zip(sizes, extents, strict=True) if tile)
        least = _resized(problem, [1 if tile else size for size, tile in zip(sizes, extents, strict=True)])
        parts = count * max(1, self._blocks(least, configuration))
        whole = _resized(problem, [tile or size for size, tile in zip(sizes, extents, strict=True)])
        return Tiling(count, parts, whole)

    def _blocks(self, problem: Problem, configuration: Configuration) -> int:
        launch = self.kernel.variant(configuration.variant).launch
        return math.prod(launch(configuration.values, problem).grid)

    def _extent(self, problem: Problem, configuration: Configuration, axis: str) -> int:
        def blocks(size: int) -> int:
            return self._blocks(self._line(problem, axis, size), configuration)

        fewest = blocks(1)
        if blocks(LARGEST) <= fewest:
            return 0
        low, high = 1, 2
        while blocks(high) <= fewest:
            low, high = high, 2 * high
        middle = low  # first of all: most tiles are powers of two
        while high - low > 1:
            middle = (low + high) // 2 if middle > low else low + 1
            low, high = (middle, high) if blocks(middle) <= fewest else (low, middle)
        return low

    def _line(self, problem: Problem, axis: str, size: int) -> Problem:
        """The problem of this size along the axis, and of size 1 along all others."""
        if (axis, size) not in self._asked:
            sizes = [size if name == axis else 1 for name, _ in problem.axes]
            self._asked[axis, size] = _resized(problem, sizes)
        return self._asked[axis, size]


def _resized(problem: Problem, sizes: Sequence[int]) -> Problem:
    return replace(problem, axes=tuple((name, size) for (name, _), size in zip(problem.axes, sizes, strict=True)))
