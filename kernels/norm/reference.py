"""The right answer of a normalisation of rows, in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

_ROUNDOFFS = 8.0
"""4 for the reciprocal root (2 ulp: CUDA Programming Guide, "Mathematical Functions"), half of that of the mean of
squares and its three steps, 2 for the two products."""

Numbers = NDArray[np.float64]


def norm_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, Reference]:
    """Y, and S where there is R. arrays: X and R (m, n), w and b (n); with b the mean is taken off.

    It normalises S as it is stored, rounded to the problem's dtype, as the next layer reads it. With A the mean of |s|
    over a row, d = s - mean, and u the unit roundoff, to first order:

    1. The mean is off by c sqrt(n) u A, which y takes over times w / deviation; the subtraction adds u |d|.
    2. The mean of squares has positive terms: relative to it c sqrt(n) u, of which the root takes half. A mean that is
       off changes the sum of squares in second order only.
    3. The reciprocal root, the products and the last rounding cost _ROUNDOFFS u |d w / deviation|, and a bias its own
       rounding and that of the sum.

    Divided by sqrt(n) u, as `Reference` multiplies by them, these make the magnitude.
    """
    inputs = {name: array.astype(np.float64) for name, array in arrays.items()}
    s = inputs["X"]
    references = {}
    if "R" in inputs:
        references["S"] = Reference(s + inputs["R"], np.abs(s) + np.abs(inputs["R"]), terms=1)
        sums = arrays["X"].astype(problem.sum_dtype) + arrays["R"].astype(problem.sum_dtype)
        s = sums.astype(problem.dtype).astype(np.float64)
    terms = problem.shape["n"]
    root = math.sqrt(terms)
    is_centred = "b" in inputs
    distance = s - s.mean(axis=1, keepdims=True) if is_centred else s
    scale = 1 / np.sqrt(np.square(distance).mean(axis=1, keepdims=True) + np.float32(scalars["eps"]).astype(np.float64))
    value = distance * scale * inputs["w"]
    magnitude = np.abs(value) * (0.5 + _ROUNDOFFS / root)
    if is_centred:
        mean_size = np.abs(s).mean(axis=1, keepdims=True)
        magnitude += np.abs(inputs["w"]) * scale * (mean_size + np.abs(distance) / root)
        value += inputs["b"]
        magnitude += (np.abs(inputs["b"]) + np.abs(value)) / root
    return references | {"Y": Reference(value, magnitude, terms)}


def norm_inputs(problem: Problem, generator: np.random.Generator, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Normal numbers, rows scaled by 2^-10 to 2^3: in the smallest eps decides, and a kernel without it is found out.

    `names` are those of the matrices that are normalised, or added up before.
    """
    m, n = problem.shape["m"], problem.shape["n"]
    scales = np.exp2(generator.integers(-10, 3, (m, 1), endpoint=True))
    return {name: (generator.standard_normal((m, n)) * scales).astype(problem.sum_dtype) for name in names}
