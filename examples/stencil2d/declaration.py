"""stencil2d: four steps of a five-point stencil, in one launch, two or four."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Preparation, Reference, Tensor, Variant, shape_of
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

ALL_STEPS = 4
CHUNK = 32  # rows that a thread of the reference has in the cache at a time


def launch(c: Values, p: Problem) -> Launch:
    """A grid of tiles, with two copies of a tile and its rim in shared memory."""
    rows, columns = c.BLOCK_Y * c.ROWS, c.BLOCK_X * c.COLUMNS
    rim = (rows + 2 * c.STEPS) * (columns + 2 * c.STEPS)
    grid = (-(-p.shape["w"] // columns), -(-p.shape["h"] // rows), 1)
    return Launch(grid, (c.BLOCK_X, c.BLOCK_Y, 1), 2 * rim * p.item_bytes)


def stepped(u: NDArray[np.float64], pool: Executor) -> NDArray[np.float64]:
    """One step, with zeros outside."""
    v, stepped = np.pad(u, 1), np.empty_like(u)

    def step(first: int) -> None:
        own = v[first : first + CHUNK + 2]
        around = own[:-2, 1:-1] + own[2:, 1:-1] + own[1:-1, :-2] + own[1:-1, 2:]
        stepped[first : first + CHUNK] = 0.5 * own[1:-1, 1:-1] + 0.125 * around

    list(pool.map(step, range(0, len(u), CHUNK)))
    return stepped


def reference(_problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the same steps of the absolute values."""
    value = arrays["x"].astype(np.float64)
    magnitude = np.abs(value)
    with ThreadPoolExecutor() as pool:  # NumPy computes without the interpreter's lock
        for _ in range(ALL_STEPS):
            value, magnitude = stepped(value, pool), stepped(magnitude, pool)
    return Reference(value, magnitude, terms=5 * ALL_STEPS)


def tile_is_used(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half a tile would not cover the array as well; the smallest always may."""
    rows, columns = c.BLOCK_Y * c.ROWS, c.BLOCK_X * c.COLUMNS
    return (rows <= 8 or rows // 2 < p.shape["h"]) and (columns <= 16 or columns // 2 < p.shape["w"])


def variant(steps: int, doc: str, *before: str) -> Variant:
    """The variant that takes so many steps a launch; what lies between launches is in the workspace."""
    buffers = {4: 0, 2: 1, 1: 2}[steps]
    workspace = {"workspace_bytes": lambda _c, p: buffers * p.shape["h"] * p.shape["w"] * p.item_bytes}
    return Variant(
        name=f"steps{steps}",
        doc=doc,
        source="stencil2d.cu",
        launch=launch,
        before=tuple(Preparation(name, launch) for name in before),
        parameters=(
            choice("STEPS", steps, doc="steps of one launch"),
            powers_of_two("BLOCK_X", 16, 128, default=32, doc="threads of a block along a row"),
            powers_of_two("BLOCK_Y", 1, 32, default=8, doc="threads of a block along a column"),
            choice("ROWS", 1, 2, 4, 8, 16, default=4, doc="rows of a tile for each thread"),
            powers_of_two("COLUMNS", 1, 4, default=1, doc="columns of a tile for each thread"),
        ),
        constraints=(
            Constraint("a block is whole warps", lambda c, _p, _d: c.BLOCK_X * c.BLOCK_Y % 32 == 0),
            Constraint("half a tile would not cover the array", tile_is_used),
        ),
        workspace_share=16,  # arrays as large as x
        **(workspace if buffers else {}),
    )


KERNEL = Kernel(
    name="stencil2d",
    doc="Four steps of u = u / 2 + (the sum of its four neighbours) / 8, from x to y, with zeros outside.",
    dtypes=("float32", "float64"),
    arguments=(Tensor("x", "input", shape_of("h", "w")), Tensor("y", "output", shape_of("h", "w"))),
    variants=(
        variant(4, "All steps in one launch: memory is read and written once."),
        variant(2, "Two launches of two steps.", "first"),
        variant(1, "Four launches of one step: no element is computed twice.", "first", "second", "third"),
    ),
    flops=lambda p: ALL_STEPS * 6 * p.shape["h"] * p.shape["w"],
    bytes_moved=lambda p: 2 * p.shape["h"] * p.shape["w"] * p.item_bytes,
    reference=reference,
    ranking_l2="cold",  # large arrays do not fit the cache
    default_variant="steps2",
    example_shape={"h": 8192, "w": 8192},
)
