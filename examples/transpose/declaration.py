"""transpose: a matrix whose rows become columns."""

from __future__ import annotations

from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, covering, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two


def launch_tiled(c: Values, p: Problem) -> Launch:
    """A grid of tiles that covers x."""
    return Launch((-(-p.shape["n"] // c.TILE), -(-p.shape["m"] // c.TILE), 1), (c.TILE // c.VECTOR, c.ROWS, 1))


KERNEL = Kernel(
    name="transpose",
    doc="y[j, i] = x[i, j].",
    dtypes=("float32", "float64"),
    arguments=(Tensor("x", "input", shape_of("m", "n")), Tensor("y", "output", shape_of("n", "m"))),
    variants=(
        Variant(
            name="tiled",
            doc="A block turns a tile in shared memory.",
            source="tiled.cu",
            launch=launch_tiled,
            parameters=(
                choice("TILE", 16, 32, 64, default=32, doc="rows and columns of a block's part"),
                powers_of_two("ROWS", 2, 32, default=8, doc="rows of the tile that move at a time"),
                powers_of_two("VECTOR", 1, 4, default=1, doc="elements of one access to memory"),
                choice("PADDING", 1, 0, 2, 4, doc="unused elements behind a row of the tile"),
            ),
            constraints=(
                Constraint("a block is whole warps", lambda c, _p, _d: c.TILE // c.VECTOR * c.ROWS % 32 == 0),
                Constraint("a tile is whole steps of its rows", lambda c, _p, _d: c.TILE % c.ROWS == 0),
                Constraint(
                    "rows of x and of y are aligned to an access",
                    lambda c, p, _d: p.shape["m"] % c.VECTOR == 0 and p.shape["n"] % c.VECTOR == 0,
                ),
            ),
            static_shared_bytes=lambda c, p: c.TILE * (c.TILE + c.PADDING) * p.item_bytes,
        ),
        Variant(
            name="direct",
            doc="A thread moves one element; loads or stores of a warp are a row apart.",
            source="direct.cu",
            launch=covering("n", "m", block=("BLOCK_X", "BLOCK_Y")),
            parameters=(
                powers_of_two("BLOCK_X", 1, 64, default=32, doc="threads along a row of x"),
                powers_of_two("BLOCK_Y", 1, 64, default=8, doc="threads along a column of x"),
            ),
            constraints=(Constraint("a block is whole warps", lambda c, _p, _d: c.BLOCK_X * c.BLOCK_Y % 32 == 0),),
        ),
    ),
    flops=lambda _p: 0,
    bytes_moved=lambda p: 2 * p.shape["m"] * p.shape["n"] * p.item_bytes,
    reference=lambda _problem, arrays, _scalars: arrays["x"].T,
    ranking_l2="cold",  # large matrices do not fit the cache
    example_shape={"m": 8192, "n": 8192},
)
