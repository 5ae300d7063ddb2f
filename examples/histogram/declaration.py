"""histogram: how often each value occurs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Kernel, Launch, Preparation, Tensor, Variant, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

ALIKE = 0.25
"""The share of the values that are one and the same: images have a background, and counting it is what is slow."""


def inputs(problem: Problem, generator: np.random.Generator) -> dict[str, NDArray[np.uint32]]:
    """Uniform values, of which a share is alike, in runs of 64 as in an image."""
    n, bins = problem.shape["n"], problem.shape["bins"]
    x = generator.integers(0, bins, n, np.uint32)
    alike = np.repeat(generator.random(-(-n // 64)) < ALIKE, 64)[:n]
    x[alike] = bins // 3
    return {"x": x}


def launch(c: Values, p: Problem) -> Launch:
    """As many blocks as the configuration says, with the copies in shared memory."""
    return Launch((c.BLOCKS, 1, 1), (c.BLOCK, 1, 1), c.COPIES * (p.shape["bins"] + 1) * 4)


def launch_clear(c: Values, p: Problem) -> Launch:
    """A thread for each bin."""
    return Launch((-(-p.shape["bins"] // c.BLOCK), 1, 1), (c.BLOCK, 1, 1))


KERNEL = Kernel(
    name="histogram",
    doc="counts[b] = how many of x are b.",
    arguments=(
        Tensor("x", "input", shape_of("n"), dtype="uint32"),
        Tensor("counts", "output", shape_of("bins"), dtype="uint32"),
    ),
    variants=(
        Variant(
            name="atomics",
            source="histogram.cu",
            launch=launch,
            before=(Preparation("clear", launch_clear),),
            parameters=(
                powers_of_two("BLOCK", 64, 1024, default=256, doc="threads of a block"),
                choice("BLOCKS", 1, 33, 66, 132, 264, 528, 1056, 2112, default=528, doc="blocks"),
                powers_of_two("VECTOR", 1, 4, default=4, doc="elements of one load"),
                choice("COPIES", 0, 1, 2, 4, 8, 16, default=4, doc="histograms of a block in shared memory"),
            ),
            constraints=(
                Constraint("a block has something to count", lambda c, p, _d: c.BLOCKS == 1 or p.shape["n"] > c.BLOCKS),
            ),
        ),
    ),
    flops=lambda _p: 0,
    bytes_moved=lambda p: 4 * (p.shape["n"] + p.shape["bins"]),
    inputs=inputs,
    reference=lambda p, arrays, _scalars: np.bincount(arrays["x"], minlength=p.shape["bins"]),
    ranking_l2="cold",
    example_shape={"n": 1 << 26, "bins": 256},
)
