"""nbody: how bodies attract each other, every one with every other."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.kernels.kernel import Arrays, Kernel, Launch, Reference, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

FLOPS = 20
"""Of one pair, as GPU Gems 3 counts them: a reciprocal square root is 2."""

CHUNK = 8  # bodies whose pairs a thread of the reference has in the cache at a time


def launch(c: Values, p: Problem) -> Launch:
    """A block for BLOCK * BODIES bodies."""
    return Launch((-(-p.shape["n"] // (c.BLOCK * c.BODIES)), 1, 1), (c.BLOCK, c.SLICES, 1))


def shared_bytes(c: Values, p: Problem) -> int:
    """Four numbers a thread for the tiles, three for the sums of the slices."""
    return (4 * c.STAGED + (3 if c.SLICES > 1 else 0)) * c.BLOCK * c.SLICES * p.item_bytes


def reference(_problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """In float64; an error is measured against the sum of absolute values, each of some ten roundings."""
    bodies = arrays["bodies"].astype(np.float64).T
    r, m = bodies[:3].copy(), bodies[3].copy()
    value, magnitude = np.empty(r.shape[::-1]), np.empty(r.shape[::-1])

    def compute(first: int) -> None:
        own = slice(first, first + CHUNK)
        d = r[:, np.newaxis] - r[:, own, np.newaxis]
        squared = np.einsum("kij,kij->ij", d, d) + scalars["softening"]
        pull = m / (squared * np.sqrt(squared))
        value[own] = np.einsum("kij,ij->ik", d, pull)
        magnitude[own] = np.einsum("kij,ij->ik", np.abs(d, out=d), np.abs(pull, out=pull))

    with ThreadPoolExecutor() as pool:  # NumPy computes without the interpreter's lock
        list(pool.map(compute, range(0, len(m), CHUNK)))
    return Reference(value, magnitude, terms=len(m) + 100)


KERNEL = Kernel(
    name="nbody",
    doc="a[i] = sum over j of m[j] d / (|d|^2 + softening)^(3/2), where d = r[j] - r[i].",
    dtypes=("float32", "float64"),
    arguments=(
        Tensor("bodies", "input", shape_of("n", 4)),
        Tensor("a", "output", shape_of("n", 3)),
        Scalar("softening", lambda _p: 0.0625),
    ),
    variants=(
        Variant(
            name="all_pairs",
            source="nbody.cu",
            launch=launch,
            parameters=(
                powers_of_two("BLOCK", 32, 512, default=128, doc="threads of a slice"),
                powers_of_two("SLICES", 1, 8, default=2, doc="groups of threads that share the bodies j"),
                choice("BODIES", 1, 2, 3, 4, 6, 8, default=2, doc="bodies i of a thread"),
                choice("STAGED", 1, 0, doc="whether bodies j come by way of shared memory"),
                powers_of_two("UNROLL", 2, 32, default=8, doc="bodies j of one pass of the inner loop"),
            ),
            constraints=(
                Constraint(
                    "every slice has a tile", lambda c, p, _d: c.SLICES == 1 or p.shape["n"] + 32 > c.BLOCK * c.SLICES
                ),
                Constraint(
                    "half the bodies of a block would not do",
                    lambda c, p, _d: 2 * max(p.shape["n"], 32) >= c.BLOCK * c.BODIES,
                ),
            ),
            static_shared_bytes=shared_bytes,
        ),
    ),
    flops=lambda p: FLOPS * p.shape["n"] ** 2,
    bytes_moved=lambda p: 7 * p.shape["n"] * p.item_bytes,
    reference=reference,
    example_shape={"n": 32768},
)
