"""reduction: the sum of a long vector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Preparation, Reference, Tensor, Variant, shape_of
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Values, choice, powers_of_two


def launch_all(c: Values, _p: Problem) -> Launch:
    """As many blocks as the configuration says, whatever the length."""
    return Launch((c.BLOCKS, 1, 1), (c.BLOCK, 1, 1))


def launch_one(c: Values, _p: Problem) -> Launch:
    """One block."""
    return Launch((1, 1, 1), (c.BLOCK, 1, 1))


def blocks_are_used(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half the blocks would not do: they then have more than one pack for each thread."""
    return c.BLOCKS == 1 or p.shape["n"] > c.BLOCKS // 2 * c.BLOCK * c.VECTOR


def reference(_problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of absolute values."""
    x = arrays["x"]
    total, size = x.sum(dtype=np.float64), np.abs(x).sum(dtype=np.float64)
    return Reference(np.array([total]), np.array([size]), terms=x.size)


def parameters(last_block: int) -> tuple[Parameter, ...]:
    """Those of either variant; LAST_BLOCK tells them apart."""
    return (
        choice("LAST_BLOCK", last_block, doc="whether the last block to arrive adds the partial sums"),
        powers_of_two("BLOCK", 64, 1024, default=256, doc="threads of a block"),
        powers_of_two("BLOCKS", 1, 4096, default=1024, doc="blocks, each of which leaves a partial sum"),
        powers_of_two("ITEMS", 1, 8, default=4, doc="packs of a thread that are under way at a time"),
        powers_of_two("VECTOR", 1, 4, default=4, doc="elements of one load"),
    )


CONSTRAINTS = (Constraint("half the blocks would not do", blocks_are_used),)

KERNEL = Kernel(
    name="reduction",
    doc="y[0] = the sum of x.",
    dtypes=("float32", "float64"),
    arguments=(Tensor("x", "input", shape_of("n")), Tensor("y", "output", shape_of(1))),
    variants=(
        Variant(
            name="one_launch",
            doc="The block that arrives last adds the partial sums.",
            source="reduction.cu",
            launch=launch_all,
            parameters=parameters(1),
            constraints=CONSTRAINTS,
            static_shared_bytes=lambda c, p: (c.BLOCK // 32 + 1) * p.item_bytes + 8,
            workspace_bytes=lambda c, p: 16 + c.BLOCKS * p.item_bytes,  # a counter, then a partial sum a block
        ),
        Variant(
            name="two_launches",
            doc="A second launch, of one block, adds the partial sums.",
            source="reduction.cu",
            launch=launch_one,
            before=(Preparation("partial", launch_all),),
            parameters=parameters(0),
            constraints=CONSTRAINTS,
            static_shared_bytes=lambda c, p: c.BLOCK // 32 * p.item_bytes,
            workspace_bytes=lambda c, p: c.BLOCKS * p.item_bytes,
        ),
    ),
    flops=lambda p: p.shape["n"],
    bytes_moved=lambda p: p.shape["n"] * p.item_bytes,
    reference=reference,
    ranking_l2="cold",  # whoever adds up a long vector finds it in memory
    example_shape={"n": 1 << 26},
)
