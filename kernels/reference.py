"""The right answer of a kernel in float64, and what a device needs to make that of a matrix product itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import is_integer
from tilewright.kernels.fields.arguments import WEIGHT_STEP
from tilewright.kernels.problem import Problem


@dataclass(frozen=True)
class Reference:
    """The right answer in float64 and what its error is measured against.

    |out - value| <= c * sqrt(terms) * unit_roundoff * magnitude, component by component; where the output has a half
    type, what storing it costs (`dtypes.Rounding`) is added. Integers must be equal.
    """

    value: NDArray[np.float64]
    magnitude: NDArray[np.float64]
    terms: int
    unit_roundoff: float | None = None  # None: that of the sums' dtype; an option may allow coarser arithmetic


TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "tfloat32": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The relative tolerance by dtype, for values without an analysis of their error: for half types and TF32 one place,
since a kernel may compute in them."""


def close_to(value: NDArray[Any], dtype: str, filtered_axes: int = 0) -> Reference:
    """The reference where only the right values are known: integers are exact.

    Others may be off by TOLERANCE, of their own size plus the mean size; and where textures are filtered by WEIGHT_STEP
    of their range for each axis, since nobody but the hardware knows the weights.
    """
    if is_integer(dtype):
        return Reference(value, np.zeros(value.shape), terms=1)
    wide = value.astype(np.float64)
    size = np.abs(wide)
    finite = size[np.isfinite(size)]
    magnitude = size + (finite.mean() if finite.size else 0.0)
    if filtered_axes and finite.size:
        magnitude += filtered_axes * WEIGHT_STEP * np.ptp(wide[np.isfinite(wide)]) / TOLERANCE[dtype]
    # What is admitted is twice the bound (verify.C_DEFAULT).
    return Reference(wide, magnitude, terms=1, unit_roundoff=TOLERANCE[dtype] / 2)


def computed(value: NDArray[Any], dtype: str, arithmetic: str = "", filtered_axes: int = 0) -> Reference:
    """The reference where only what another configuration computed is known: integers are exact.

    Both may be off, so that others may differ by twice TOLERANCE, that of `arithmetic` where it is coarser than the
    dtype. It is of their own size plus the mean size, of all or of their row: rows of one result differ in size where
    sums of few terms stand beside sums of many, as in causal attention.
    """
    reference = close_to(value, dtype, filtered_axes)
    if is_integer(dtype) or not value.ndim:
        return reference
    size = np.where(np.isfinite(reference.value), np.abs(reference.value), 0.0)
    own = reference.magnitude - size
    magnitude = size + np.maximum(own, size.mean(axis=-1, keepdims=True))
    tolerance = max(TOLERANCE[dtype], TOLERANCE[arithmetic or dtype])
    return replace(reference, magnitude=magnitude, unit_roundoff=tolerance)


Arrays = Mapping[str, NDArray[Any]]
ReferenceFunction = Callable[[Problem, Arrays, Mapping[str, float]], Any]
"""What each output must be: a Reference, or the right values alone; by name where there are several outputs. With a
`check` of the kernel's own, anything that it takes."""

InputsFunction = Callable[[Problem, "np.random.Generator"], Mapping[str, Any]]
"""The contents of those inputs that are not to be drawn, by name."""

CheckFunction = Callable[[Arrays, Any], str | None]
"""Takes outputs by name and what the reference returned; returns what is wrong, in words, or None or ""."""

Finish = Callable[[Problem, Arrays, NDArray[np.float64], NDArray[np.float64]], Reference]


@dataclass(frozen=True)
class FinishThere:
    """`ProductReference.finish` as a function of a GPU's, where results have the place and the number of the sums.

    `source` has `finish(sums, magnitudes, addends, columns, count, root, unit, least)`, which changes `count` sums and
    magnitudes in place. `addends`: the input with a number for each column; root: that of the terms; unit: the unit
    roundoff of sums, and least: the smallest normal number.
    """

    source: Path
    addends: str
    macros: Callable[[Problem], Mapping[str, str]]


@dataclass(frozen=True)
class ProductReference:
    """The reference of a product whose sums are made elsewhere, in float64.

    `terms(problem)` is that of `Reference`. `finish(problem, arrays, sums, magnitudes)` does what comes after the
    product: sums of products, and of their absolute values, become the reference; None where nothing comes after, and
    alpha, beta and what is added to are the product's own. `inside(problem)` is whose sums these are, where they are
    those of another kernel, with factors of the same names; None where that kernel does not have the problem.
    `there`: what a GPU does in place of `finish`: at 8192 x 4096 that takes a host 0.3 s for each kind of inputs.
    """

    terms: Callable[[Problem], int]
    finish: Finish | None = None
    inside: Callable[[Problem], Problem | None] = lambda problem: problem
    there: FinishThere | None = None


TF32_ROUNDOFF = 2.0**-10
"""TF32 keeps 10 bits behind the leading one. Hardware may cut the rest off instead of rounding, so it is the whole
distance from 1 to the next number, not half of it."""


def admitted_roundoff(problem: Problem) -> float | None:
    """The unit roundoff that results are held to; None for the dtype's own, which `fp32` and `fp32-fma` both mean."""
    return TF32_ROUNDOFF if problem.options.get("accuracy") == "tf32" else None
