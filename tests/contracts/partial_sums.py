"""partial_sums: an output of as many elements as the configuration has blocks."""

from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.space import Configuration, choice

SMALLEST_BLOCK = 64


def blocks(c, p):
    return -(-p.shape["n"] // c.block_size)


def check(outputs, expected):
    total = float(outputs["sums"].sum(dtype=np.float64))
    return None if abs(total - expected) <= 1e-3 else f"the sums add up to {total}, not to {expected}"


PARTIAL_SUMS = Kernel(
    name="partial_sums",
    folder=Path(__file__).parents[1] / "tuner" / "mixed_kernels",
    arguments=(
        Tensor("x", "input", shape_of("n")),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Tensor("sums", "output", lambda p: (-(-p.shape["n"] // SMALLEST_BLOCK),), written=blocks),
    ),
    variants=(
        Variant(
            "plain",
            "partial_sums.cu",
            lambda c, p: Launch((blocks(c, p), 1, 1), (c.block_size, 1, 1)),
            (choice("block_size", SMALLEST_BLOCK, 128, 256), choice("BUG", 0, 1)),
        ),
    ),
    reference=lambda _problem, arrays, _scalars: float(arrays["x"].sum(dtype=np.float64)),
    check=check,
    example_shape={"n": 1000},
)
PROBLEM = PARTIAL_SUMS.problem({"n": 1001})


def with_block(block_size, bug=0):
    return Configuration.of("plain", {"block_size": block_size, "BUG": bug})
