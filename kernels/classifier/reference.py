"""The right answer of classifier, in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

_SOFTMAX_ROUNDOFFS = 14
"""Roundings that softmax's reference allows beside those of its sum."""

_REACH = 8.0
"""A hidden unit that is off by this many bounds stays off for every c up to it."""


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def classifier_reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """softmax(relu(X W1ᵀ + b1) W2ᵀ + b2). arrays: X (m, k), W1 (h, k), b1 (h), W2 (n, h), b2 (n).

    With u the unit roundoff, the errors of three steps, each proportional to c u, to first order:

    1. Hidden sums of k + 1 terms: d1 = c sqrt(k + 1) u (|X| |W1|ᵀ + |b1|), as linear's. relu passes it on where the
       unit may be on, and nothing where it is surely off.
    2. Outputs z: what W2 makes of d1, |W2| d1, and c sqrt(h + 1) u (a |W2|ᵀ + |b2|) of their own, a being the hidden
       activations, which are not negative.
    3. Softmax turns an error d2 of z into a relative one of y: d2 of the component itself and the mean of all d2 of
       the row, weighted with y. Its own rounding is that of the kernel softmax (kernels/softmax/reference.py): with d
       the distance to the largest, c sqrt(n) + |d| + sum of y |d| + 14, in u.

    Divided by sqrt(n) u, as `Reference` multiplies by them, this is the magnitude. Below the smallest normal number
    nothing relative holds: as in softmax, twice that number is granted.
    """
    x, w1, b1, w2, b2 = (arrays[name].astype(np.float64) for name in ("X", "W1", "b1", "W2", "b2"))
    unit = UNIT_ROUNDOFF[problem.sum_dtype]
    k, h, n = (problem.shape[axis] for axis in "khn")
    hidden = x @ w1.T + b1
    first = math.sqrt(k + 1) * (np.abs(x) @ np.abs(w1).T + np.abs(b1))
    first[hidden < -_REACH * unit * first] = 0
    np.maximum(hidden, 0, out=hidden)
    z = hidden @ w2.T + b2
    second = first @ np.abs(w2).T + math.sqrt(h + 1) * (hidden @ np.abs(w2).T + np.abs(b2))
    z -= z.max(axis=1, keepdims=True)
    value = np.exp(z)
    value /= value.sum(axis=1, keepdims=True)
    second += np.abs(z)
    mean = np.einsum("ij,ij->i", value, second)[:, np.newaxis]
    root = math.sqrt(n)
    magnitude = value * (1 + (second + mean + _SOFTMAX_ROUNDOFFS) / root)
    magnitude += 2 * SMALLEST_NORMAL[problem.sum_dtype] / (root * unit)
    return Reference(value, magnitude, n)
