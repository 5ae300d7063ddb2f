"""Random shapes, edges of tiles among them, and random views of a problem's matrices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from fuzz.convolutions import edge_convolutions, random_convolution

from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.linear_quantized.declaration import MOST_ROWS as MOST_QUANTISED
from tilewright.kernels.linear_quantized.held_space import MOST_ROWS as MOST_HELD
from tilewright.kernels.linear_quantized.reference import GROUP
from tilewright.kernels.problem import OptionValue

LARGEST = 700
EDGES = (1, 127, 129)
"""A single row, column or product, and one element more or less than a tile of 128, in every combination of axes."""

ALIGNMENTS = (1, 1, 1, 4, 8, 32)
"""A random size is a multiple of one of these: half of the axes end anywhere, half let vectors be used."""

FEW, SHARE_OF_FEW, SHARE_OF_EDGES = 16, 0.25, 0.2
"""A size is at most FEW, or one of EDGES, in these shares."""

LONGEST_ROW, MOST_ROWS, SHARE_OF_LONG_ROWS = 20_000, 64, 0.3
"""Of kernels of two axes: rows for blocks of many threads."""

MOST_GROUPS = 24
"""Of a row of weights."""

BATCHES = (1, 1, 2, 3, 7)
ROW_GAPS = (0, 0, 1, 2, 3, 4, 8, 36)
MATRIX_GAPS = (0, 0, 1, 2, 4, 12)
TAKING_TURNS, SHARED = 0.2, 0.25
"""Shares of matrices: those whose rows lie between those of the others, and inputs of which a batch has one."""


def random_shape(kernel: Kernel, generator: random.Random) -> dict[str, int]:
    """A size for every axis that a shape must have."""
    is_edge = generator.random() < SHARE_OF_EDGES
    if kernel.name == "conv2d":
        return generator.choice(edge_convolutions()) if is_edge else random_convolution(generator)
    if kernel.name == "linear_quantized":
        return generator.choice(edge_layers()) if is_edge else random_layer(generator)
    if len(kernel.axes) == 2 and generator.random() < SHARE_OF_LONG_ROWS:
        step = generator.choice(ALIGNMENTS)
        sizes = generator.randint(1, MOST_ROWS), step * generator.randint(1, LONGEST_ROW // step)
        return dict(zip(kernel.axes, sizes, strict=True))
    return {axis: _size(generator) for axis in kernel.axes}


def _size(generator: random.Random) -> int:
    turn = generator.random()
    if turn < SHARE_OF_FEW:
        return generator.randint(1, FEW)
    return generator.choice(EDGES) if turn < SHARE_OF_FEW + SHARE_OF_EDGES else random_size(generator)


def random_size(generator: random.Random) -> int:
    """From 1 to LARGEST."""
    step = generator.choice(ALIGNMENTS)
    return step * generator.randint(1, LARGEST // step)


def random_layer(generator: random.Random) -> dict[str, int]:
    """Some rows of X, and of W."""
    n, m = random_size(generator), generator.randint(1, generator.choice((MOST_HELD, MOST_QUANTISED)))
    return {"m": m, "n": n, "k": GROUP * generator.randint(1, MOST_GROUPS)}


def edge_layers() -> list[dict[str, int]]:
    """Few rows of X and as many as there may be, of one group and of two."""
    sizes = itertools.product((1, 8, MOST_HELD, MOST_QUANTISED), EDGES, (GROUP, 2 * GROUP))
    return [{"m": m, "n": n, "k": k} for m, n, k in sizes]


def random_views(
    kernel: Kernel, shape: Mapping[str, int], options: Mapping[str, OptionValue], generator: random.Random
) -> dict[str, int]:
    """Optional axes for this shape: none for half of all problems, and for kernels without a batch."""
    if not any(axis.name == "batch" for axis in kernel.optional_axes) or generator.random() < 0.5:
        return {}
    views = {"batch": generator.choice(BATCHES)}
    for matrix in "abc":
        views |= _placed(matrix, stored_rows(matrix, shape, options), views["batch"], generator)
    return views


def _placed(matrix: str, rows: tuple[int, int], batch: int, generator: random.Random) -> dict[str, int]:
    count, length = rows
    lead = length + generator.choice((*ROW_GAPS, -length % 4))
    if batch == 1:
        return {f"ld{matrix}": lead}
    if generator.random() < TAKING_TURNS:
        stride = length + generator.choice((*MATRIX_GAPS, -length % 4))
        return {f"ld{matrix}": batch * stride + generator.choice(ROW_GAPS), f"stride_{matrix}": stride}
    if matrix != "c" and generator.random() < SHARED:
        return {f"ld{matrix}": lead, f"stride_{matrix}": 0}
    return {f"ld{matrix}": lead, f"stride_{matrix}": count * lead + generator.choice((*MATRIX_GAPS, -count * lead % 4))}
