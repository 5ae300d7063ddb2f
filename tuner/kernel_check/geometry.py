"""Axes, shapes and launch of a first declaration: by how far the kernel's indices go, else a thread an element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.tuner.cuda_source.extents import Extents
from tilewright.tuner.cuda_source.proposed import Values

THREADS = {1: (256,), 2: (32, 8), 3: (32, 4, 2)}
"""The threads of a block along x, y and z where the source names no macro for them, by the number of axes."""

EXAMPLE_SIZES = (1 << 20, 1024, 128, 32)
"""The size of every axis that threads run along, where there are one, two, three or more."""

LOOP_SIZE = 16
"""The size of every other axis: one that a thread loops over."""

Tuned = Mapping[str, Values]
"""Default and values of each parameter, by its name."""


def block_parameters(extents: Extents) -> dict[str, int]:
    """Names and defaults of the threads along each axis, for a kernel that asks `blockDim` for them."""
    axes = extents.axes
    names = ["BLOCK_SIZE"] if axes == ["x"] else [f"BLOCK_SIZE_{axis.upper()}" for axis in axes]
    return dict(zip(names, THREADS[len(axes)], strict=True))


@dataclass(frozen=True)
class FirstGeometry:
    """Axes with their example sizes, and grid and block as Python expressions."""

    threads: tuple[str, ...]
    loops: tuple[str, ...]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    extents: Extents

    @classmethod
    def of(cls, extents: Extents, numbers: Sequence[str], tuned: Tuned, blocks: Sequence[str]) -> FirstGeometry:
        """The first geometry for a kernel with these integers and parameters; `blocks` name the threads of a block."""
        along = dict(extents.along)
        if not along:  # nothing tells: an axis for each number, x along the last, the kernel's last axis along the rest
            names = [*numbers[:3]] or ["n"]
            along = {axis: (name,) for axis, name in zip(extents.axes[:-1], reversed(names), strict=False)}
            rest = tuple(names[: len(names) - len(along)])
            along |= {extents.axes[-1]: rest} if rest else {}
        threads = [name for axis in "zyx" for name in along.get(axis, ())]
        loops = [name for name in numbers if name in extents.loops and name not in threads]
        grid, block = [], []
        for place, axis in enumerate("xyz"):
            bound = " * ".join(f'p.shape["{name.lower()}"]' for name in along.get(axis, ()))
            own = _threads(place, extents, tuned, blocks) if bound or axis in extents.axes else "1"
            step = extents.per_block(axis)
            block.append(own)
            step = f"c.{step}" if step in tuned else own
            bound = "" if extents.is_one_block else f"({bound})" if "*" in bound else bound
            grid.append(f"-(-{bound} // {step})" if bound else "1")
        return cls(tuple(dict.fromkeys(threads)), tuple(loops), tuple(grid), tuple(block), extents)

    @property
    def axes(self) -> list[str]:
        """Names of the axes."""
        return [name.lower() for name in dict.fromkeys([*self.threads, *self.loops])]

    @property
    def example(self) -> dict[str, int]:
        """A size for each axis."""
        size = EXAMPLE_SIZES[min(len(self.threads), len(EXAMPLE_SIZES)) - 1]
        sizes = dict.fromkeys((name.lower() for name in self.loops), LOOP_SIZE)
        return {axis: sizes.get(axis, size) for axis in self.axes}

    def shape_of(self, array: str) -> list[str]:
        """The axes of an array: by its indices, else all that threads run along."""
        return [name.lower() for name in self.extents.shape_of(array) or self.threads]


def _threads(place: int, extents: Extents, tuned: Tuned, blocks: Sequence[str]) -> str:
    """Threads of a block along an axis: the factor of the block's number, else the parameters in order."""
    step, axis = extents.per_block("xyz"[place]), "xyz"[place]
    if step in blocks:
        return f"c.{step}"
    named = [name for name in blocks if name.lower().endswith(axis)]
    if named:
        return f"c.{named[0]}"
    if place < len(blocks):
        return f"c.{blocks[place]}"
    if step in tuned:
        return f"c.{step}"
    if blocks:
        square = len(blocks) == 1 and tuned[blocks[0]][0] ** len(extents.axes) <= math.prod(THREADS[1]) * 4
        return f"c.{blocks[0]}" if square and axis in extents.axes else "1"
    return str(THREADS[len(extents.axes)][place]) if place < len(extents.axes) else "1"
