"""The right answer of softmax, in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem

_OTHER_ROUNDOFFS = 14
"""4 for exp, 4 for the mean of the others' exp, 2 for the division, 4 for the last step of a late largest."""

_FARTHEST = 800.0
"""exp(-800) is 0 in float64: what lies farther below the largest counts for nothing, be it minus infinity."""


def softmax_reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """exp(x - max) / sum of each row of X (m, n).

    Let d = x - max <= 0, e = exp(d), y = e / sum, and u the unit roundoff. To first order, relative to y:

    1. d is rounded by u |d|, which exp turns into a relative error of u |d| in e; exp adds 2 ulp, at most 4 u (CUDA
       Programming Guide, "Mathematical Functions").
    2. The sum has positive terms only. It takes over the mean of their errors, weighted with their shares:
       u (4 + sum of y |d| over the row), and adds c sqrt(n) u of its own, as every sum here is granted.
    3. Division costs u, or 2 u as a product with the rounded inverse.
    4. A kernel that meets the largest element late (`online`) multiplies early terms by exp(old - new largest): the
       differences add up to |d| again, already counted, and the last such step costs 4 u more (the ones before it are
       those of the sum: one to each addition at most, and random like its roundings; the
       worst tried, a sorted row of 5000 nearly equal elements taken one by one in float32, came to c = 1.05, and
       verification grants 2).

    Together y u (c sqrt(n) + |d| + sum of y |d| + 14). Below the smallest normal number nothing relative holds, so e
    and y are granted that number each; as the sum is at least 1, it does not grow. Divided by sqrt(n) u, as `Reference`
    multiplies by them, this is the magnitude. A lost term shows in float32 where its share is over these bounds: any
    in a row of hundreds or thousands. In rows of a million float64 must find it.
    """
    x = arrays["X"].astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    value = np.exp(x)
    value /= value.sum(axis=1, keepdims=True)
    np.minimum(np.abs(x), _FARTHEST, out=x)
    terms = problem.shape["n"]
    root, unit = math.sqrt(terms), UNIT_ROUNDOFF[problem.sum_dtype]
    mean = np.einsum("ij,ij->i", value, x)[:, np.newaxis]
    magnitude = x
    magnitude += mean + _OTHER_ROUNDOFFS
    magnitude /= root
    magnitude += 1.0
    magnitude *= value
    magnitude += 2 * SMALLEST_NORMAL[problem.sum_dtype] / (root * unit)
    return Reference(value, magnitude, terms)
