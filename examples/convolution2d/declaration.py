"""convolution2d: an image under a filter, with its border given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Reference, Tensor, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

Matrix = NDArray[np.float64]

BAND = 64  # columns of y in one product of the reference: wider, and more of it is zeros times zeros
STRIP = 256  # rows of y in one product: what it reads stays in a core's cache while all rows of the filter pass
OTHER_REGISTERS = 40  # addresses, indices and what is read, beside the sums


def launch(c: Values, p: Problem) -> Launch:
    """A grid of tiles that covers y."""
    columns, rows = c.BLOCK_X * c.COLUMNS, c.BLOCK_Y * c.ROWS
    return Launch((-(-p.shape["w"] // columns), -(-p.shape["h"] // rows), 1), (c.BLOCK_X, c.BLOCK_Y, 1))


def launch_tiled(c: Values, p: Problem) -> Launch:
    """The same, with the tile of x and the filter in shared memory."""
    plain, r, s = launch(c, p), p.shape["r"], p.shape["s"]
    pitch = c.BLOCK_X * c.COLUMNS + s - 1 + c.PADDING
    elements = (c.BLOCK_Y * c.ROWS + r - 1) * pitch + r * s
    return Launch(plain.grid, plain.block, elements * p.item_bytes)


def sums_fit(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread's sums fit its registers, by estimate."""
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // (c.BLOCK_X * c.BLOCK_Y))
    return c.ROWS * c.COLUMNS * p.item_bytes // 4 + OTHER_REGISTERS <= available


def tile_is_used(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a tile of half the rows, or of half the columns, would not cover y as well; the smallest always may."""
    rows, columns = c.BLOCK_Y * c.ROWS, c.BLOCK_X * c.COLUMNS
    return (rows <= 4 or rows // 2 < p.shape["h"]) and (columns <= 8 or columns // 2 < p.shape["w"])


def convolved(x: Matrix, f: Matrix, shape: tuple[int, int]) -> Matrix:
    """The image under the filter, as products with matrices that hold a row of the filter along their diagonal."""
    (h, w), (r, s) = shape, f.shape
    bands, columns = np.zeros((r, BAND + s - 1, BAND)), np.arange(BAND)
    for b in range(s):
        bands[:, columns + b, columns] = f[:, b, np.newaxis]
    y = np.zeros(shape)
    for top, left in itertools.product(range(0, h, STRIP), range(0, w, BAND)):
        part = y[top : top + STRIP, left : left + BAND]
        rows, width = part.shape
        read = x[top : top + rows + r - 1, left : left + width + s - 1]
        for a in range(r):
            part += read[a : a + rows] @ bands[a, : width + s - 1, :width]
    return y


def reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of |f x|, of which there are r s terms."""
    x, f = (arrays[name].astype(np.float64) for name in ("x", "f"))
    shape = (problem.shape["h"], problem.shape["w"])
    return Reference(convolved(x, f, shape), convolved(np.abs(x), np.abs(f), shape), terms=f.size)


def shape_x(p: Problem) -> tuple[int, int]:
    """The image with its border."""
    return (p.shape["h"] + p.shape["r"] - 1, p.shape["w"] + p.shape["s"] - 1)


def bytes_moved(p: Problem) -> int:
    """Read x and f once, write y once."""
    rows, columns = shape_x(p)
    return (rows * columns + p.shape["r"] * p.shape["s"] + p.shape["h"] * p.shape["w"]) * p.item_bytes


PARAMETERS = (
    powers_of_two("BLOCK_X", 8, 128, default=32, doc="threads of a block along a row"),
    powers_of_two("BLOCK_Y", 1, 32, default=4, doc="threads of a block along a column"),
    powers_of_two("ROWS", 1, 16, default=4, doc="rows of y that a thread sums, neighbours"),
    powers_of_two("COLUMNS", 1, 8, default=2, doc="columns of y that a thread sums, BLOCK_X apart"),
)
CONSTRAINTS = (
    Constraint("a block is whole warps", lambda c, _p, _d: c.BLOCK_X * c.BLOCK_Y % 32 == 0),
    Constraint("a thread's sums fit its registers", sums_fit),
    Constraint("half a tile would not cover the image", tile_is_used),
)

KERNEL = Kernel(
    name="convolution2d",
    doc="y[i, j] = sum of f[a, b] x[i + a, j + b]: an image of one channel under a filter of r rows and s columns.",
    folder=Path(__file__).parent,
    axes=("h", "w", "r", "s"),
    dtypes=("float32", "float64"),
    options=(),
    arguments=(
        Tensor("x", "input", shape_x),
        Tensor("f", "input", lambda p: (p.shape["r"], p.shape["s"])),
        Tensor("y", "output", lambda p: (p.shape["h"], p.shape["w"])),
    ),
    variants=(
        Variant(
            name="direct",
            doc="Every thread reads the image from memory; the caches hold what neighbours share.",
            source="direct.cu",
            launch=launch,
            parameters=PARAMETERS,
            constraints=CONSTRAINTS,
        ),
        Variant(
            name="tiled",
            doc="A block brings its part of the image and the filter into shared memory first.",
            source="tiled.cu",
            launch=launch_tiled,
            parameters=(*PARAMETERS, choice("PADDING", 0, 1, 2, 4, 8, doc="unused elements behind a row of the tile")),
            constraints=(
                *CONSTRAINTS,
                Constraint(
                    "only a warp that reads several rows pads", lambda c, _p, _d: c.PADDING == 0 or c.BLOCK_X < 32
                ),
            ),
        ),
    ),
    flops=lambda p: 2 * p.shape["h"] * p.shape["w"] * p.shape["r"] * p.shape["s"],
    bytes_moved=bytes_moved,
    reference=reference,
    ranking_l2="warm",  # a camera, or the layer before, has just written the image
    default_variant="tiled",
    example_shape={"h": 4096, "w": 4096, "r": 17, "s": 17},
)
