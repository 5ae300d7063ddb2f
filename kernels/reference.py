"""What a device needs to know to make the reference of a kernel that is a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

Finish = Callable[[Problem, Arrays, NDArray[np.float64], NDArray[np.float64]], Reference]


@dataclass(frozen=True)
class ProductReference:
    """The reference of a product whose sums are made elsewhere, in float64.

    `terms(problem)` is that of `Reference`. `finish(problem, arrays, sums, magnitudes)` does what comes after the
    product: sums of products, and of their absolute values, become the reference; None where nothing comes after, and
    alpha, beta and what is added to are the product's own.
    """

    terms: Callable[[Problem], int]
    finish: Finish | None = None
