"""The right answer of gemm, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.accuracy import admitted_roundoff
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem


def terms(problem: Problem) -> int:
    """How many numbers a component adds up: k products, and beta C where it counts."""
    return problem.shape["k"] + (not problem.options["beta_zero"])


def gemm_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """The product alpha op(A) op(B) + beta C, by two matrix products of NumPy's BLAS.

    arrays: A (m, k), or (k, m) with trans_a; B (k, n), or (n, k) with trans_b; C (m, n) before the launch, which is
    not looked at with beta_zero and may be absent then.
    """
    a = _operand(arrays["A"], transposed=bool(problem.options["trans_a"]))
    b = _operand(arrays["B"], transposed=bool(problem.options["trans_b"]))
    alpha, beta = scalars["alpha"], scalars["beta"]
    value = a @ b
    value *= alpha
    magnitude = np.abs(a) @ np.abs(b)
    magnitude *= abs(alpha)
    if not problem.options["beta_zero"]:
        c = arrays["C"].astype(np.float64)
        value += beta * c
        magnitude += abs(beta) * np.abs(c)
    return Reference(value, magnitude, terms(problem), admitted_roundoff(problem))


def _operand(stored: NDArray[np.floating], *, transposed: bool) -> NDArray[np.float64]:
    wide = stored.astype(np.float64)
    return wide.T if transposed else wide
