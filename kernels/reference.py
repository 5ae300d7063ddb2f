"""The right answer of a kernel in float64, and what a device needs to make that of a matrix product itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.problem import Problem


@dataclass(frozen=True)
class Reference:
    """The right answer in float64 and what its error is measured against.

    |out - value| <= c * sqrt(terms) * unit_roundoff * magnitude, component by component.
    """

    value: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    terms: int
    unit_roundoff: float | None = None  # None: the dtype's; an option may allow coarser arithmetic


Arrays = Mapping[str, NDArray[np.floating]]
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
