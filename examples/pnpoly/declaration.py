"""pnpoly: which points lie in a polygon."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Kernel, Scalar, Tensor, Variant, covering, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, choice, powers_of_two

NEAR = 1e-5
"""So near an edge, or the height of a vertex, float32 may see a point on the other side: ten times its rounding."""


def inputs(problem: Problem, generator: np.random.Generator) -> dict[str, NDArray[np.float64]]:
    """A star around the origin, whose edges do not cross. The points are drawn by Tilewright, normally distributed."""
    v = problem.shape["v"]
    angle, radius = 2 * np.pi * np.arange(v) / v, generator.uniform(0.5, 1.5, v)
    return {"vertices": np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)}


def reference(_problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> dict[str, NDArray[np.bool_]]:
    """In float64: which points are inside, and which are too near an edge to tell."""
    x, y = arrays["points"].astype(np.float64).T
    vertices = arrays["vertices"].astype(np.float64)
    inside, near = np.zeros(len(x), bool), np.zeros(len(x), bool)
    for (ax, ay), (bx, by) in zip(np.roll(vertices, 1, axis=0), vertices, strict=True):
        near |= np.abs(y - by) < NEAR
        spans = (ay > y) != (by > y)
        to_the_right = (bx - ax) * (y[spans] - ay) / (by - ay) + ax - x[spans]
        inside[spans] ^= to_the_right > 0
        near[spans] |= np.abs(to_the_right) < NEAR
    return {"inside": inside, "near": near}


def check(outputs: Arrays, expected: Mapping[str, NDArray[np.bool_]]) -> str | None:
    """Points near an edge may be on either side of it; 0 and 1 are the only answers."""
    inside = outputs["inside"]
    odd = np.flatnonzero((inside != expected["inside"]) & ~expected["near"] | (inside < 0) | (inside > 1))
    return f"{odd.size} points are on the wrong side, the first is {odd[0]}: {inside[odd[0]]}" if odd.size else None


KERNEL = Kernel(
    name="pnpoly",
    doc="inside[i] = whether point i lies in the polygon of these vertices.",
    entry="point_in_polygon",
    arguments=(
        Tensor("points", "input", shape_of("n", 2)),
        Tensor("vertices", "input", shape_of("v", 2)),
        Tensor("inside", "output", shape_of("n"), dtype="int32"),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
    ),
    variants=(
        Variant(
            name="crossings",
            source="pnpoly.cu",
            launch=covering("n", block=("block_size_x",), items=("tile_size",)),
            parameters=(
                powers_of_two("block_size_x", 32, 1024, default=128, doc="threads of a block"),
                choice("tile_size", 1, 2, 4, 6, 8, 12, 16, default=2, doc="points of a thread"),
                choice("between_method", 0, 1, 2, doc="how an edge is found to span the height of a point"),
                choice("vertices_in_shared", 0, 1, default=1, doc="whether a block copies the vertices first"),
            ),
            constraints=(
                Constraint("half a block would not do", lambda c, p, _d: c.block_size_x < 2 * max(p.shape["n"], 32)),
            ),
            static_shared_bytes=lambda c, p: 8 * p.shape["v"] * c.vertices_in_shared,
        ),
    ),
    inputs=inputs,
    reference=reference,
    check=check,
    example_shape={"n": 200_000, "v": 600},
)
