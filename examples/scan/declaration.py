"""scan: the sums of a vector up to each of its elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Preparation, Reference, Tensor, Variant, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two


def tiles(c: Values, p: Problem) -> int:
    """How many tiles cover x."""
    return -(-p.shape["n"] // (c.BLOCK * c.ITEMS))


def launch(c: Values, p: Problem) -> Launch:
    """A block for each tile."""
    return Launch((tiles(c, p), 1, 1), (c.BLOCK, 1, 1))


def shared_bytes(c: Values, p: Problem) -> int:
    """A sum for each warp, and what a block knows of itself."""
    return (c.BLOCK // 32 + 1) * p.item_bytes + 16


def look_back_bytes(c: Values, p: Problem) -> int:
    """Counters, then what each tile has published: with every 4 bytes of a sum 4 of its state."""
    return 16 + 2 * tiles(c, p) * p.item_bytes


def reference(_problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of absolute values so far."""
    x = arrays["x"].astype(np.float64)
    return Reference(np.cumsum(x), np.cumsum(np.abs(x)), terms=x.size)


PARAMETERS = (
    powers_of_two("BLOCK", 64, 1024, default=256, doc="threads of a block"),
    choice("ITEMS", 4, 8, 12, 16, 20, 24, 32, default=8, doc="elements of a thread"),
)
CONSTRAINTS = (
    Constraint("half a tile would not do", lambda c, p, _d: 2 * max(p.shape["n"], 128) >= c.BLOCK * c.ITEMS),
)

KERNEL = Kernel(
    name="scan",
    doc="y[i] = x[0] + ... + x[i].",
    dtypes=("float32", "float64"),
    arguments=(Tensor("x", "input", shape_of("n")), Tensor("y", "output", shape_of("n"))),
    variants=(
        Variant(
            name="look_back",
            doc="One launch; a block waits for the tiles before it.",
            source="look_back.cu",
            launch=launch,
            parameters=(
                *PARAMETERS,
                choice("AHEAD", 1, 2, 4, doc="tiles that a lane asks for at a time when it looks back"),
                choice("TICKETS", 1, 0, doc="whether tiles are numbered in the order in which blocks begin"),
            ),
            constraints=CONSTRAINTS,
            static_shared_bytes=shared_bytes,
            workspace_bytes=look_back_bytes,
        ),
        Variant(
            name="three_launches",
            doc="Sums of tiles, what stands before each, then the tiles; x is read twice.",
            source="three_launches.cu",
            launch=launch,
            before=(
                Preparation("sums", launch),
                Preparation("offsets", lambda c, _p: Launch((1, 1, 1), (c.BLOCK, 1, 1))),
            ),
            parameters=PARAMETERS,
            constraints=CONSTRAINTS,
            static_shared_bytes=shared_bytes,
            workspace_bytes=lambda c, p: tiles(c, p) * p.item_bytes,
        ),
    ),
    flops=lambda p: p.shape["n"],
    bytes_moved=lambda p: 2 * p.shape["n"] * p.item_bytes,
    reference=reference,
    ranking_l2="cold",  # long vectors do not fit the cache
    default_variant="three_launches",
    example_shape={"n": 1 << 26},
)
