"""triton_matmul: the product of two matrices, in Triton."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernels.kernel import Arrays, Kernel, Reference, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two


def reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the same sum of absolute values."""
    a, b = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
    return Reference(a @ b, np.abs(a) @ np.abs(b), problem.shape["k"])


def tiles(c: Values, p: Problem) -> tuple[int]:
    """A program for each tile of the result."""
    return (-(-p.shape["m"] // c.BLOCK_M) * -(-p.shape["n"] // c.BLOCK_N),)


def tiles_suit(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    sizes = ((c.BLOCK_M, "m"), (c.BLOCK_N, "n"), (c.BLOCK_K, "k"))
    return all(size == 16 or size < 2 * p.shape[axis] for size, axis in sizes)


def registers_suffice(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a thread has at most 128 sums, and each warp an instruction's worth of them."""
    sums = c.BLOCK_M * c.BLOCK_N
    return sums <= 128 * 32 * c.num_warps and sums >= 4 * 32 * c.num_warps


KERNEL = Kernel(
    name="triton_matmul",
    doc="c = a b.",
    entry="matmul",
    arguments=(
        Tensor("a", "input", shape_of("m", "k")),
        Tensor("b", "input", shape_of("k", "n")),
        Tensor("c", "output", shape_of("m", "n")),
        Scalar("m", lambda p: p.shape["m"], dtype="int32"),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Scalar("k", lambda p: p.shape["k"], dtype="int32"),
        Scalar("a_stride", lambda p: p.shape["k"], dtype="int32"),
        Scalar("b_stride", lambda p: p.shape["n"], dtype="int32"),
        Scalar("c_stride", lambda p: p.shape["n"], dtype="int32"),
    ),
    variants=(
        Variant(
            name="tiles",
            source="matmul.py",
            launch=programs(tiles),
            parameters=(
                powers_of_two("BLOCK_M", 16, 256, default=64),
                powers_of_two("BLOCK_N", 16, 256, default=64),
                powers_of_two("BLOCK_K", 16, 128, default=32),
                choice("GROUP_M", 1, 4, 8, default=8, doc="rows of tiles that are computed together"),
                choice("PRECISION", 0, 1, 2, doc="0: float32; 1: three products of TF32; 2: one, which is too coarse"),
                powers_of_two("num_warps", 1, 8, default=4),
                choice("num_stages", 1, 2, 3, 4, default=3, doc="tiles under way from memory"),
            ),
            constraints=(
                Constraint("half a tile would not do", tiles_suit),
                Constraint("a thread has 4 to 128 sums", registers_suffice),
                Constraint(
                    "tiles in flight fit shared memory",
                    lambda c, _p, d: (
                        4 * c.num_stages * c.BLOCK_K * (c.BLOCK_M + c.BLOCK_N) <= max(d.max_shared_bytes, 48 * 1024)
                    ),
                ),
            ),
            min_compute_capability=(8, 0),
        ),
    ),
    flops=lambda p: 2 * p.shape["m"] * p.shape["n"] * p.shape["k"],
    bytes_moved=lambda p: (
        p.item_bytes * (p.shape["m"] * p.shape["k"] + p.shape["k"] * p.shape["n"] + p.shape["m"] * p.shape["n"])
    ),
    reference=reference,
    example_shape={"m": 512, "n": 512, "k": 512},
)
