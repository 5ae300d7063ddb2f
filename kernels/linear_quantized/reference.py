"""The right answer of linear_quantized in float64, and inputs that are weights of such a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

GROUP = 128
"""Neighbours along k that share a scale, where not all of a row do."""

MOST_ROWS = 64
"""Rows of X: with more, dequantising once and calling gemm is faster."""

MIDDLE = 8
"""The zero point of weights of 4 bits that have none of their own."""


def bits(p: Problem) -> int:
    """Bits of a weight."""
    return 8 if p.options["weights"] == "int8" else 4


def has_zeros(p: Problem) -> bool:
    """Whether groups have a zero point of their own."""
    return p.options["weights"] == "int4_zeros"


def groups(p: Problem) -> int:
    """Groups of a row."""
    return 1 if p.options["group"] == "row" else p.shape["k"] // GROUP


def weights_shape(p: Problem) -> tuple[int, int]:
    """W as it is stored: two weights of 4 bits are a byte."""
    return p.shape["n"], p.shape["k"] * bits(p) // 8


def scales_shape(p: Problem) -> tuple[int, ...]:
    """S: a scale for each group, or a scale and a zero point."""
    return (p.shape["n"], groups(p), 2) if has_zeros(p) else (p.shape["n"], groups(p))


def random_weights(p: Problem, generator: np.random.Generator) -> dict[str, NDArray[Any]]:
    """W and S of a layer: every whole number that a weight can be, scales within a factor of 4, zero points 0 to 15."""
    shape = weights_shape(p)
    low, high = (-128, 128) if bits(p) == 8 else (0, 256)
    scales = generator.uniform(0.5, 2.0, scales_shape(p)) / 2 ** bits(p)
    if has_zeros(p):
        scales[..., 1] = generator.integers(0, 16, scales.shape[:-1])
    return {"W": generator.integers(low, high, shape, dtype=np.int8 if low else np.uint8), "S": scales}


def dequantised(p: Problem, arrays: Arrays) -> NDArray[np.float64]:
    """The weights that W and S stand for: (n, k)."""
    whole = arrays["W"]
    if bits(p) == 4:
        whole = np.stack([whole & 15, whole >> 4], axis=-1)
    whole = whole.reshape(p.shape["n"], groups(p), -1).astype(np.float64)
    scales = arrays["S"].astype(np.float64).reshape(p.shape["n"], groups(p), -1)
    zero = scales[..., 1:] if has_zeros(p) else MIDDLE if bits(p) == 4 else 0
    weights: NDArray[np.float64] = ((whole - zero) * scales[..., :1]).reshape(p.shape["n"], p.shape["k"])
    return weights


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def linear_quantized_reference(p: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """X dequantised(W)ᵀ by NumPy's BLAS. Beside its k products a sum is scaled once for each of its groups."""
    x, w = arrays["X"].astype(np.float64), dequantised(p, arrays)
    return Reference(x @ w.T, np.abs(x) @ np.abs(w).T, p.shape["k"] + groups(p))
