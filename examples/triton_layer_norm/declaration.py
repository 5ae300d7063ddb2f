"""triton_layer_norm: layer normalisation of each row with what a backward pass needs, in Triton."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernels.kernel import Arrays, Kernel, Reference, Scalar, Tensor, Variant, programs, shape_of
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Constraint, choice, powers_of_two


def reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, Reference]:
    """In float64, with what an error of each output is measured against.

    A mean is off by a sum's rounding of the absolute values. What is subtracted by it is off by as much, which the
    factor makes larger; the factor itself is off by some roundings, and by what its squares inherit of the mean.
    """
    x, w, b = (arrays[name].astype(np.float64) for name in ("x", "w", "b"))
    n = problem.shape["n"]
    mean = x.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + scalars["epsilon"])
    size = np.abs(x).mean(axis=1, keepdims=True) + np.abs(x)
    y_size = size * scale * (1 + np.abs((x - mean) * scale)) * np.abs(w) + np.abs(b)
    scale_size = scale * (1 + size.mean(axis=1, keepdims=True) * scale)
    return {
        "y": Reference((x - mean) * scale * w + b, 4 * y_size, n),
        "mean": Reference(mean[:, 0], size.mean(axis=1), n),
        "scale": Reference(scale[:, 0], 4 * scale_size[:, 0], n),
    }


KERNEL = Kernel(
    name="triton_layer_norm",
    doc="y[i, :] = (x[i, :] - mean[i]) * scale[i] * w + b.",
    entry="layer_norm",
    arguments=(
        Tensor("x", "input", shape_of("m", "n")),
        Tensor("w", "input", shape_of("n")),
        Tensor("b", "input", shape_of("n")),
        Tensor("y", "output", shape_of("m", "n")),
        Tensor("mean", "output", shape_of("m")),
        Tensor("scale", "output", shape_of("m")),
        Scalar("n", lambda p: p.shape["n"], dtype="int32"),
        Scalar("epsilon", lambda _p: 1e-5, dtype="float32"),
    ),
    variants=(
        Variant(
            name="row",
            source="layer_norm.py",
            launch=programs(lambda _c, p: (p.shape["m"],)),
            parameters=(
                powers_of_two("BLOCK", 16, 16384, default=1024, doc="columns of a row that are read at a time"),
                powers_of_two("num_warps", 1, 16, default=4),
                choice("num_stages", 1, 2, 3, 4, default=2, doc="loads under way while a row is read in blocks"),
            ),
            constraints=(
                Constraint("half a block would not do", lambda c, p, _d: c.BLOCK == 16 or 2 * p.shape["n"] > c.BLOCK),
                Constraint(
                    "a thread holds 1 to 128 elements",
                    lambda c, _p, _d: (
                        128 * 32 * c.num_warps >= c.BLOCK and (32 * c.num_warps <= c.BLOCK or c.num_warps == 1)
                    ),
                ),
                Constraint("stages need a loop", lambda c, p, _d: c.num_stages == 2 or p.shape["n"] > c.BLOCK),
            ),
            min_compute_capability=(8, 0),
        ),
    ),
    flops=lambda p: 8 * p.shape["m"] * p.shape["n"],
    bytes_moved=lambda p: p.item_bytes * (2 * p.shape["m"] * p.shape["n"] + 2 * p.shape["n"] + 2 * p.shape["m"]),
    reference=reference,
    ranking_l2="cold",
    example_shape={"m": 4096, "n": 1024},
)
