"""The right answer of gemv, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

FEW_TERMS = 16
"""Up to here float64 results are held against more than float64. With 3 terms the reference's own rounding took a right
result to 2.2 of its bound."""


def terms(problem: Problem) -> int:
    """How many numbers a component adds up: n products, and beta y where it counts."""
    return problem.shape["n"] + (not problem.options["beta_zero"])


def product(a: NDArray[np.float64], x: NDArray[np.float64], problem: Problem) -> NDArray[np.float64]:
    """The product a x."""
    if problem.dtype != "float64" or problem.shape["n"] > FEW_TERMS:
        return np.asarray(a @ x)
    total = np.zeros(a.shape[0], np.longdouble)
    for column, factor in zip(a.T, x, strict=True):
        total += column.astype(np.longdouble) * factor
    return total.astype(np.float64)


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def gemv_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """The product alpha op(A) x + beta y.

    arrays: A (m, n), or (n, m) with trans_a; x (n); y (m) before the launch, which is not looked at with beta_zero and
    may be absent then.
    """
    a, x = arrays["A"].astype(np.float64), arrays["x"].astype(np.float64)
    if problem.options["trans_a"]:
        a = a.T
    alpha, beta = scalars["alpha"], scalars["beta"]
    value = alpha * product(a, x, problem)
    magnitude = abs(alpha) * (np.abs(a) @ np.abs(x))
    if not problem.options["beta_zero"]:
        y = arrays["y"].astype(np.float64)
        value += beta * y
        magnitude += abs(beta) * np.abs(y)
    return Reference(value, magnitude, terms(problem))
