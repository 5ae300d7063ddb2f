"""bitonic_sort: the rows of a matrix, each sorted."""

from __future__ import annotations

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

LONGEST_ROW = 4096
MOST_PER_THREAD = 32  # elements that a thread holds in registers


def per_thread(c: Values, p: Problem) -> int:
    """Elements of a thread, of a row padded to a power of two."""
    return -(-(1 << (p.shape["n"] - 1).bit_length()) // c.THREADS)


def launch(c: Values, p: Problem) -> Launch:
    """A block for ROWS rows, each of which has its place in shared memory."""
    shared = c.ROWS * per_thread(c, p) * (c.THREADS + c.PADDING) * p.item_bytes
    return Launch((-(-p.shape["m"] // c.ROWS), 1, 1), (c.THREADS, c.ROWS, 1), shared)


def fault(p: Problem) -> tuple[str, str] | None:
    """Rows that are too long for the registers of a block."""
    return ("n", f"rows have at most {LONGEST_ROW} elements") if p.shape["n"] > LONGEST_ROW else None


KERNEL = Kernel(
    name="bitonic_sort",
    doc="Each row of y is the row of x, in ascending order.",
    dtypes=("float32", "float64"),
    arguments=(Tensor("x", "input", shape_of("m", "n")), Tensor("y", "output", shape_of("m", "n"))),
    variants=(
        Variant(
            name="registers",
            source="bitonic_sort.cu",
            launch=launch,
            parameters=(
                powers_of_two("THREADS", 32, 1024, default=128, doc="threads of a row"),
                powers_of_two("ROWS", 1, 8, default=1, doc="rows of a block"),
                choice("PADDING", 1, 0, 4, doc="unused elements of shared memory behind every THREADS"),
            ),
            constraints=(
                Constraint("a row fits the registers", lambda c, p, _d: per_thread(c, p) <= MOST_PER_THREAD),
                Constraint(
                    "half the threads would not hold a row one by one",
                    lambda c, p, _d: c.THREADS == 32 or 2 * p.shape["n"] > c.THREADS,
                ),
            ),
        ),
    ),
    fault=fault,
    flops=lambda _p: 0,
    bytes_moved=lambda p: 2 * p.shape["m"] * p.shape["n"] * p.item_bytes,
    reference=lambda _problem, arrays, _scalars: np.sort(arrays["x"], axis=1),
    ranking_l2="cold",
    example_shape={"m": 16384, "n": 1024},
)
