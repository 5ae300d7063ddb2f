"""The right answer of gemm, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import admitted_roundoff


def terms(problem: Problem) -> int:
    """How many numbers a component adds up: k products, and beta C where it counts."""
    return problem.shape["k"] + (not problem.options["beta_zero"])


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def gemm_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """The product alpha op(A) op(B) + beta C, by two matrix products of NumPy's BLAS for each of the batch.

    arrays: A (m, k), or (k, m) with trans_a; B (k, n), or (n, k) with trans_b; C (m, n) before the launch, which is
    not looked at with beta_zero and may be absent then; with a batch, that many of each.
    """
    a = _operand(arrays["A"], transposed=bool(problem.options["trans_a"]))
    b = _operand(arrays["B"], transposed=bool(problem.options["trans_b"]))
    alpha, beta = scalars["alpha"], scalars["beta"]
    value = a @ b
    value *= alpha
    magnitude = _absolute(a) @ _absolute(b)
    magnitude *= abs(alpha)
    if not problem.options["beta_zero"]:
        c = arrays["C"].astype(np.float64)
        value += beta * c
        magnitude += abs(beta) * np.abs(c)
    return Reference(value, magnitude, terms(problem), admitted_roundoff(problem))


def _operand(stored: NDArray[np.floating], *, transposed: bool) -> NDArray[np.float64]:
    if stored.ndim == 3 and stored.strides[0] == 0:
        wide = np.broadcast_to(stored[0].astype(np.float64), stored.shape)  # one matrix, widened once
    else:
        wide = stored.astype(np.float64, order="C")
    return wide.swapaxes(-1, -2) if transposed else wide


def _absolute(operand: NDArray[np.float64]) -> NDArray[np.float64]:
    if operand.ndim == 3 and operand.strides[0] == 0:
        return np.broadcast_to(np.abs(operand[0]), operand.shape)
    return np.abs(operand)
