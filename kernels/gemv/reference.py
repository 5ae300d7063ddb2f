"""The right answer of gemv, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem


def gemv_reference(problem: Problem, arrays: Arrays, scalars: Mapping[str, float]) -> Reference:
    """The product alpha A x + beta y.

    arrays: A (m, n), x (n), y (m) before the launch, which is not looked at with beta_zero and may be absent then.
    """
    a, x = arrays["A"].astype(np.float64), arrays["x"].astype(np.float64)
    alpha, beta = scalars["alpha"], scalars["beta"]
    value = alpha * (a @ x)
    magnitude = abs(alpha) * (np.abs(a) @ np.abs(x))
    if not problem.options["beta_zero"]:
        y = arrays["y"].astype(np.float64)
        value += beta * y
        magnitude += abs(beta) * np.abs(y)
    return Reference(value, magnitude, terms=problem.shape["n"] + (not problem.options["beta_zero"]))
