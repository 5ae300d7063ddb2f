"""The right answer of linear, in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import admitted_roundoff

Numbers = NDArray[np.float64]

REACH = 8.0
"""Slopes are taken over this many bounds of the pre-activation to each side, so they hold for every c up to it."""

_CHUNK = 1 << 15
"""Numbers that a thread computes at a time, so few that they stay in a core's cache."""

_LEAST, _MOST, _PLACES = -6, 28, 4096
"""The table of the complementary error function: its first and last place, and places a whole number."""


@dataclass(frozen=True)
class Activation:
    """A function, its steepest slope between two bounds, and the unit roundoffs that computing it costs.

    `value(z)`; `steepest(low, high)` is at least |f'(t)| for all t in [low, high]. `roundoffs` counts those of the
    result, as multiples of |f(z)|; `argument_roundoffs` those that act on z before the function.
    """

    value: Callable[[Numbers], Numbers]
    steepest: Callable[[Numbers, Numbers], Numbers]
    roundoffs: float = 0.0
    argument_roundoffs: float = 0.0


def terms(problem: Problem) -> int:
    """How many numbers a component adds up before the activation: k products and the bias."""
    return problem.shape["k"] + 1


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def linear_reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """act(X Wᵀ + b), by NumPy's BLAS. arrays: X (m, k), W (n, k), b (n)."""
    x, w = (arrays[name].astype(np.float64) for name in ("X", "W"))
    return activated(problem, arrays, x @ w.T, np.abs(x) @ np.abs(w).T)


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def activated(problem: Problem, arrays: Arrays, z: Numbers, magnitude: Numbers) -> Reference:
    """The reference from X Wᵀ and |X| |W|ᵀ, both of which it overwrites. It reads only b of `arrays`."""
    return activated_sums(problem, arrays["b"].astype(np.float64), z, magnitude, terms(problem))


def activated_sums(problem: Problem, b: Numbers, z: Numbers, magnitude: Numbers, count: int) -> Reference:
    """The reference of act(z + b) from sums z of products and s of their sizes, `count` terms in all; overwrites both.

    With u the unit roundoff, z + b is computed with an error of at most d = c sqrt(count) u (s + |b|), as gemm's is.
    Three things add up in the activated result:

    1. The mean value theorem: |f(z + d) - f(z)| <= d max |f'(t)| over |t - z| <= d. Roundings of the argument inside f
       (gelu scales it by a rounded 1/sqrt 2) act like r u |z| more in d. The slope is the local one, since a
       saturated sigmoid forgets the error of its argument: where relu is surely off, only 0 is right.
    2. Rounding within f: CUDA's Programming Guide bounds exp by 2 ulp, tanh by 2, erfc by 5 ("Mathematical
       Functions"), an ulp being at most 2 u of the value; additions, divisions and multiplications cost u each.
       Together q u |f(z)|: sigmoid 4 + 1 + 1 = 6, tanh 4, silu as sigmoid, gelu 10 + 1 = 11 (halving is exact).
       By (1 + erf) / 2, gelu is as exact in absolute terms but not for negative z, where 1 + erf cancels: each form is
       right to users, so 2 u |z| is granted beside.
    3. Underflow: below the smallest normal number (sigmoid of -88 in float32) nothing relative holds, so that number
       is granted once; for relu and none it is not needed and not granted.

    For an infinite sum the activation is exact, and the magnitude is 0.

    Divided by sqrt(count) u, as `Reference` multiplies by them, these make the magnitude. They grow with c as it does.
    """
    activation = ACTIVATIONS[str(problem.options["activation"])]
    admitted = admitted_roundoff(problem)
    z += b
    magnitude += np.abs(b)
    if activation is not IDENTITY:
        root, unit = math.sqrt(count), admitted or UNIT_ROUNDOFF[problem.sum_dtype]
        least = SMALLEST_NORMAL[problem.sum_dtype]
        rows = max(1, _CHUNK // z[0].size)
        parts = [slice(first, first + rows) for first in range(0, len(z), rows)]
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda part: _activate(activation, z[part], magnitude[part], root, unit, least), parts))
    return Reference(z, magnitude, count, admitted)


@np.errstate(invalid="ignore")  # which a thread has for itself
def _activate(activation: Activation, z: Numbers, magnitude: Numbers, root: float, unit: float, least: float) -> None:
    """Some rows of sums with their bias, and their magnitudes, in place: the pass over them stays in the cache."""
    magnitude += activation.argument_roundoffs / root * np.abs(z)
    reach = REACH * root * unit * magnitude
    value = activation.value(z)
    magnitude *= activation.steepest(z - reach, z + reach)
    if activation is not RELU:
        magnitude += activation.roundoffs / root * np.abs(value)
        magnitude += least / (root * unit)
    if activation is GELU:
        magnitude += 2 / root * np.abs(z)
    magnitude[np.isinf(z)] = 0
    z[...] = value


def _relu(z: Numbers) -> Numbers:
    return np.maximum(z, 0.0)


def _relu_steepest(_low: Numbers, high: Numbers) -> Numbers:
    return (high > 0).astype(np.float64)


def _sigmoid(z: Numbers) -> Numbers:
    """The sigmoid by exp(-|z|), which never overflows and keeps all digits on both sides."""
    shrunk = np.exp(-np.abs(z))
    return np.where(z < 0, shrunk, 1.0) / (1.0 + shrunk)


def _sigmoid_steepest(low: Numbers, high: Numbers) -> Numbers:
    """The function sigmoid (1 - sigmoid), even and falling away from 0: largest where the interval is nearest to 0."""
    shrunk = np.exp(-_distance_from_zero(low, high))
    steepest: Numbers = shrunk / np.square(1.0 + shrunk)
    return steepest


def _tanh_steepest(low: Numbers, high: Numbers) -> Numbers:
    """The steepest slope of tanh z = 2 sigmoid(2 z) - 1: four times sigmoid's at twice the place."""
    return 4.0 * _sigmoid_steepest(2.0 * low, 2.0 * high)


def _distance_from_zero(low: Numbers, high: Numbers) -> Numbers:
    return np.maximum(np.maximum(low, -high), 0.0)


def _normal_below(z: Numbers) -> Numbers:
    """Phi(z), the normal distribution function, to the last digits on both sides."""
    return 0.5 * _erfc(-math.sqrt(0.5) * z)


def _erfc(x: Numbers) -> Numbers:
    """The complementary error function, which NumPy has not: from the nearest place where it is known, by its series.

    Its slope, -2/sqrt(pi) exp(-x^2), has Hermite's polynomials for derivatives. Up to x = 26 it is within 8e-16 of
    `math.erfc`, which a study of 4096 x 3072 waited 20 s for before its first trial (H200's host, 2026-11-24).
    """
    known, slopes = _erfc_table()
    x = np.clip(x, _LEAST, _MOST)
    place = np.rint(np.nan_to_num(x) * _PLACES)
    far = x - place / _PLACES
    index = place.astype(np.int64) - _LEAST * _PLACES
    first, second = -2.0 / _PLACES * place * far, -2.0 * np.square(far)
    before, term, total = np.zeros_like(x), np.ones_like(x), np.ones_like(x)
    for order in range(1, 5):
        before, term = term, (first * term + second * before) / order
        total += term / (order + 1)
    result: Numbers = known[index] - slopes[index] * far * total
    return result


@cache
def _erfc_table() -> tuple[Numbers, Numbers]:
    """The values of erfc and its negative slopes at every 1/4096 from where it is 2 to where it is 0."""
    places = np.arange(_LEAST * _PLACES, _MOST * _PLACES + 1) / _PLACES
    values = np.fromiter(map(math.erfc, places.tolist()), np.float64, len(places))
    return values, 2.0 / math.sqrt(math.pi) * np.exp(-np.square(places))


def _gelu(z: Numbers) -> Numbers:
    return z * _normal_below(z)


def _gelu_steepest(_low: Numbers, high: Numbers) -> Numbers:
    """|Phi + t phi| <= g(t) = Phi(t) + |t| phi(t), which rises up to t = sqrt 2 and falls slowly (to 1) after it."""
    at = np.minimum(high, math.sqrt(2.0))
    return _normal_below(at) + np.abs(at) * np.exp(-0.5 * np.square(at)) / math.sqrt(2.0 * math.pi)


def _silu(z: Numbers) -> Numbers:
    return z * _sigmoid(z)


def _silu_steepest(_low: Numbers, high: Numbers) -> Numbers:
    """A bound on silu's slope with s = sigmoid: s + |t| s (1 - s), which rises up to t = 2.4, then falls to 1."""
    at = np.minimum(high, 2.399357280515468)  # where t tanh(t / 2) = 2
    return _sigmoid(at) + np.abs(at) * _sigmoid_steepest(at, at)


IDENTITY = Activation(lambda z: z, lambda low, _high: np.ones_like(low))
RELU = Activation(_relu, _relu_steepest)
SIGMOID = Activation(_sigmoid, _sigmoid_steepest, roundoffs=6)
TANH = Activation(np.tanh, _tanh_steepest, roundoffs=4)
GELU = Activation(_gelu, _gelu_steepest, roundoffs=11, argument_roundoffs=2)
SILU = Activation(_silu, _silu_steepest, roundoffs=6)

ACTIVATIONS: Mapping[str, Activation] = {
    "none": IDENTITY,
    "relu": RELU,
    "sigmoid": SIGMOID,
    "tanh": TANH,
    "gelu": GELU,
    "silu": SILU,
}
