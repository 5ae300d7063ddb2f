"""How a launch divides the axes of a problem into tiles, found by asking it for other shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration

Extents = tuple[int, ...]
"""A tile: its size along each axis of the kernel, 0 along one that is not divided."""

LARGEST = 2**14
"""An axis that needs no second tile at this size counts as not divided."""

USUAL = 64
"""Most tiles of kernels with persistent blocks, whose grid tells little, are as large or larger."""

MOST_SIZES = 4096
"""Sizes whose problems are kept."""

PROBED = 64
"""A size, and twice it, that tensors are asked about."""


@dataclass(frozen=True)
class Tiling:
    """A problem under one configuration. The rest along undivided axes may be split once more."""

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
    _counted_along: dict[Configuration, list[int]] = field(default_factory=dict)  # see `_shared`
    _asked: dict[tuple[tuple[str, int], ...], Problem] = field(default_factory=dict)
    _of_sizes: dict[tuple[int, ...], Problem] = field(default_factory=dict)
    _spanned: dict[str, tuple[bool, ...]] = field(default_factory=dict)  # by tensor
    rows: dict[Hashable, dict[Hashable, list[float]]] = field(default_factory=dict)  # see `Features.kept_rows`

    def extents(self, problem: Problem, configuration: Configuration) -> Extents:
        """Per axis, the largest size that takes no more blocks than size 1, the other axes being 1."""
        extents = self._extents.get(configuration)
        if extents is None:
            try:
                extents = tuple(self._extent(problem, configuration, axis) for axis, _ in problem.axes)
                counted_along = self._shared(problem, configuration, extents)
            except (ArithmeticError, LookupError, ValueError):  # a launch that is not defined for such shapes
                extents, counted_along = (0,) * len(problem.axes), list(range(len(problem.axes)))
            # In this order: another thread that finds extents finds the other too.
            self._counted_along[configuration], self._extents[configuration] = counted_along, extents
        return extents

    def tiling(self, problem: Problem, configuration: Configuration) -> Tiling:
        """The number of tiles and parts of the problem; each member of a batch has as many."""
        extents, sizes = self.extents(problem, configuration), [size for _, size in problem.axes]
        members = math.prod(size for _, size in problem.sizes[len(sizes) :])
        count = members * math.prod(self._along(problem, configuration))
        least = self._resized(problem, [1 if tile else size for size, tile in zip(sizes, extents, strict=True)])
        parts = count * max(1, self._blocks(least, configuration))
        along = enumerate(self._counted_along[configuration])
        runs = [extents[place] if axis == place else extents[place] // extents[axis] for place, axis in along]
        whole = self._resized(problem, [run or size for size, run in zip(sizes, runs, strict=True)])
        return Tiling(count, parts, whole)

    def sharing(self, problem: Problem, configuration: Configuration) -> list[int]:
        """For each of the kernel's tensors, how many tiles need the same part: those along the axes that it lacks."""
        tiles = self._along(problem, configuration)
        spanned = (self._spans(tensor, problem) for tensor in self.kernel.tensors)
        return [math.prod(n for n, has in zip(tiles, spans, strict=True) if not has) for spans in spanned]

    def _along(self, problem: Problem, configuration: Configuration) -> list[int]:
        """The number of tiles along each axis; tiles that several axes share count along one of them."""
        extents, covered = self.extents(problem, configuration), [1] * len(problem.axes)
        for (_, size), axis, tile in zip(problem.axes, self._counted_along[configuration], extents, strict=True):
            covered[axis] *= -(-size * extents[axis] // tile) if tile else 1  # in runs, where a thread has several
        return [-(-size // tile) if tile else 1 for size, tile in zip(covered, extents, strict=True)]

    def _shared(self, problem: Problem, configuration: Configuration, extents: Extents) -> list[int]:
        """Per axis, the place of the axis along which its tiles are counted: its own, unless two axes share tiles.

        So do a convolution's images, rows and columns, of which a tile takes so many pixels in all. A tile along two
        such axes, all others being 1, is many tiles. The shortest extent is that of a tile; a longer one is as much
        longer as a thread takes several elements along that axis.
        """
        counted = list(range(len(extents)))
        divided = sorted((place for place, tile in enumerate(extents) if tile), key=extents.__getitem__)
        ends = [(name, tile) for (name, _), tile in zip(problem.axes, extents, strict=True)]
        fewest = self._blocks(self._sized(problem), configuration)
        for one, other in itertools.combinations(divided, 2):
            are_apart = counted[one] == one and counted[other] == other
            if are_apart and self._blocks(self._sized(problem, ends[one], ends[other]), configuration) > fewest:
                counted[other] = one
        return counted

    def _spans(self, tensor: Tensor, like: Problem) -> tuple[bool, ...]:
        """Whether the tensor's shape depends on each axis."""
        if tensor.name not in self._spanned:
            sizes = [PROBED] * len(like.axes)
            others = ([*sizes[:i], 2 * PROBED, *sizes[i + 1 :]] for i in range(len(sizes)))
            try:
                usual, *shapes = (tuple(tensor.shape(_resized(like, asked))) for asked in (sizes, *others))
                self._spanned[tensor.name] = tuple(shape != usual for shape in shapes)
            except (ArithmeticError, LookupError, ValueError):  # a shape that is not defined for such sizes
                self._spanned[tensor.name] = (True,) * len(sizes)
        return self._spanned[tensor.name]

    def _blocks(self, problem: Problem, configuration: Configuration) -> int:
        launch = self.kernel.variant(configuration.variant).launch
        return math.prod(launch(configuration.values, problem).grid)

    def _extent(self, problem: Problem, configuration: Configuration, axis: str) -> int:
        def blocks(size: int) -> int:
            return self._blocks(self._sized(problem, (axis, size)), configuration)

        fewest, most = blocks(1), blocks(LARGEST)
        if most <= fewest:
            return 0
        # As many tiles as blocks, mostly: few questions then, where a search among all sizes takes ten.
        tiles = max(2, most // fewest)
        low, high = -(-LARGEST // tiles), -(-LARGEST // (tiles - 1))
        if blocks(low) > fewest or blocks(high) <= fewest:
            low, high = (USUAL, 2 * USUAL) if blocks(USUAL) <= fewest else (1, 2)
            while blocks(high) <= fewest:
                low, high = high, 2 * high
        if blocks(low + 1) > fewest:  # first of all: most tiles are powers of two
            return low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if blocks(middle) <= fewest else (low, middle)
        return low

    def _resized(self, problem: Problem, sizes: Sequence[int]) -> Problem:
        """The problem with these sizes, kept, as what problems derive from sizes takes longer than the look-up."""
        key = tuple(sizes)
        made = self._of_sizes.get(key)
        if made is None:
            if len(self._of_sizes) >= MOST_SIZES:
                self._of_sizes.clear()
            made = self._of_sizes[key] = _resized(problem, sizes)
        return made

    def _sized(self, problem: Problem, *given: tuple[str, int]) -> Problem:
        """The problem of these sizes along these axes, and of size 1 along all others."""
        if given not in self._asked:
            sizes = dict(given)
            self._asked[given] = _resized(problem, [sizes.get(name, 1) for name, _ in problem.axes])
        return self._asked[given]


def _resized(problem: Problem, sizes: Sequence[int]) -> Problem:
    """The dense problem of these sizes, without a batch."""
    axes = tuple((name, size) for (name, _), size in zip(problem.axes, sizes, strict=True))
    return replace(problem, axes=axes, chosen_axes=())
