"""triton_softmax: softmax of each row, in Triton."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, choice, powers_of_two


def reference(_problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> NDArray[np.float64]:
    """In float64, from the distances to the largest of the row."""
    x = arrays["x"].astype(np.float64)
    shares = np.exp(x - x.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


KERNEL = Kernel(
    name="triton_softmax",
    doc="y[i, :] = softmax of x[i, :].",
    entry="softmax_rows",
    arguments=(
        Tensor("x", "input", shape_of("m", "n")),
        Tensor("y", "output", shape_of("m", "n")),
        Scalar("m", lambda p: p.shape["m"], dtype="int32"),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
    ),
    variants=(
        Variant(
            name="rows",
            source="softmax.py",
            launch=programs(lambda c, p: (-(-p.shape["m"] // c.ROWS),)),
            parameters=(
                powers_of_two("BLOCK", 16, 16384, default=1024, doc="columns of a row that are read at a time"),
                choice("ROWS", 1, 2, 4, 8, doc="rows of a program"),
                powers_of_two("num_warps", 1, 16, default=4),
                choice("num_stages", 1, 2, 3, 4, default=2, doc="loads under way while a row is read in blocks"),
            ),
            constraints=(
                Constraint("half a block would not do", lambda c, p, _d: c.BLOCK == 16 or 2 * p.shape["n"] > c.BLOCK),
                Constraint("a thread holds 1 to 128 elements", lambda c, _p, _d: _fits(c.BLOCK * c.ROWS, c.num_warps)),
                Constraint("stages need a loop", lambda c, p, _d: (c.num_stages == 2) | (p.shape["n"] > c.BLOCK)),
            ),
            min_compute_capability=(8, 0),
        ),
    ),
    flops=lambda p: 5 * p.shape["m"] * p.shape["n"],
    bytes_moved=lambda p: 2 * p.shape["m"] * p.shape["n"] * p.item_bytes,
    reference=reference,
    ranking_l2="cold",
    example_shape={"m": 4096, "n": 1024},
)


def _fits(elements: int, warps: int) -> bool:
    return elements <= 128 * 32 * warps and (elements >= 32 * warps or warps == 1)
