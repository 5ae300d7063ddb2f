"""Verification: a result compared with the float64 reference, component by component."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF, Rounding, is_integer, rounding_of, sum_dtype
from tilewright.kernels.kernel import Reference
from tilewright.tuner.arrays import NONFINITE, SMALLEST
from tilewright.tuner.line_kinds import SPECIAL, SPECIAL_2
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.outcome import ALL_KINDS, Executable, KindsPart, Verification

C_DEFAULT = 2.0
"""How many bounds an error may reach. Rounding errors of a sum of k terms grow like sqrt(k) (Higham and Mary 2019,
theorem 2.4), with a constant near 1 for uniform inputs; cuBLAS itself reached 1.196 in our measurement."""

LIBRARY_MARGIN = 1.25
"""How many times as far off as the library a result in a half type may be, where that is more than C_DEFAULT bounds."""

_CHUNK = 1 << 18
"""Components compared at a time: temporaries of 2 MiB stay in the cache and off the memory bill at 4096 x 4096."""


def tolerance(reference: Reference, dtype: str) -> NDArray[np.float64]:
    """The bound with c = 1 on each component's error: sqrt(terms) * unit roundoff * (magnitude + underflow).

    Where sums are stored in a half type, what that costs comes on top (`dtypes.Rounding`).
    """
    return (reference.magnitude + underflow(dtype)) * bound_factor(reference.terms, reference.unit_roundoff, dtype)


def underflow(dtype: str) -> float:
    """The addend of a magnitude: below the smallest normal number all roundings have one size.

    Times the dtype's unit roundoff, it is the distance of subnormal numbers, half of which a rounding may cost; alpha
    is 2 where there is one.
    """
    return 2 * SMALLEST_NORMAL[sum_dtype(dtype)]


def bound_factor(terms: int, unit_roundoff: float | None, dtype: str) -> float:
    """The factor from a magnitude to its bound; `unit_roundoff` None is that of the dtype's sums."""
    return math.sqrt(terms) * (UNIT_ROUNDOFF[sum_dtype(dtype)] if unit_roundoff is None else unit_roundoff)


def library_widening(bound_ratio: float | None) -> float:
    """The factor, with a margin, that widens a bound for a library whose worst error is `bound_ratio` of it."""
    if bound_ratio is None or not math.isfinite(bound_ratio):
        return 1.0  # it is wrong, or nobody can tell
    return max(1.0, LIBRARY_MARGIN * bound_ratio / C_DEFAULT)


def worse(first: Verification, second: Verification) -> Verification:
    """The one with more wrong components, or else the one nearer to its bound."""
    return max(first, second, key=lambda v: (v.wrong, v.bound_ratio or 0.0))


def compare(out: NDArray[Any], reference: Reference, dtype: str, c: float = C_DEFAULT) -> Verification:
    """The error of `out` in units of the bound, and which components exceed `c` bounds.

    A NaN or infinity where the reference is finite is wrong with ratio inf; where the reference is not finite, only
    the same value is right. Of an output in a half type, the error is what is left when its rounding is taken off, and
    infinity is right where a sum within `c` bounds overflows. Integers must be equal. Raises ValueError on a shape that
    is not the reference's.
    """
    if out.shape != reference.value.shape:
        raise ValueError(f"the output has shape {out.shape}, the reference {reference.value.shape}")
    if is_integer(dtype):
        return _compare_integers(out, reference.value)
    flat_out, value, magnitude = out.reshape(-1), reference.value.reshape(-1), reference.magnitude.reshape(-1)
    factor = bound_factor(reference.terms, reference.unit_roundoff, dtype)
    rounding, worst, wrong, first = rounding_of(dtype, reference.terms), 0.0, 0, None
    for start in range(0, flat_out.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        bound = (magnitude[part] + underflow(dtype)) * factor
        ratio = _ratios(flat_out[part].astype(np.float64), value[part], bound, rounding, c)
        worst = max(worst, float(ratio.max()))
        over = ratio > c
        count = int(np.count_nonzero(over))
        if count and first is None:
            first = start + int(np.argmax(over))
        wrong += count
    if first is None:
        return Verification(bound_ratio=worst, wrong=wrong)
    where = tuple(int(i) for i in np.unravel_index(first, out.shape))
    return Verification(worst, wrong, where, got=float(flat_out[first]), expected=float(value[first]))


def _compare_integers(out: NDArray[Any], value: NDArray[Any]) -> Verification:
    places = np.flatnonzero(out != value)
    if not places.size:
        return Verification(bound_ratio=0.0, wrong=0)
    where = tuple(int(i) for i in np.unravel_index(places[0], out.shape))
    return Verification(math.inf, places.size, where, got=int(out[where]), expected=int(value[where]))


def verify_configuration(bench: Bench, executable: Executable, part: KindsPart = ALL_KINDS) -> Verification:
    """The worst over these kinds of inputs; a configuration that may win passes all of them."""
    verifications = bench.verify_each_kind(executable, part)
    return bench.verify(executable) if verifications is None else reduce(worse, verifications)


def verify_library_call(bench: Bench, executable: Executable, part: KindsPart = ALL_KINDS) -> Verification | None:
    """The worst over these kinds of inputs; None where the library's result cannot be read.

    Where it is wrong about infinities, NaN or the smallest numbers, it is a baseline all the same.
    """
    verifications = bench.verify_each_kind(executable, part)
    return None if verifications is None else reduce(worse, filter(speaks_for_library, verifications))


def speaks_for_library(verification: Verification) -> bool:
    """Whether failing this means that a library is wrong: few libraries promise right results with some inputs."""
    return verification.is_right or verification.inputs not in {NONFINITE, SMALLEST, SPECIAL, SPECIAL_2}


def _ratios(
    out: NDArray[np.float64], value: NDArray[np.float64], bound: NDArray[np.float64], rounding: Rounding, c: float
) -> NDArray[np.float64]:
    """Error over bound of each component; never NaN."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(out - value)
        if rounding.unit_roundoff:
            error -= rounding.unit_roundoff * np.maximum(np.abs(value), rounding.smallest_normal)
            np.maximum(error, 0.0, out=error)
        ratio = error / bound
        overflows = np.isinf(out) & (out * value > 0) & (np.abs(value) + c * bound >= rounding.overflow)
    ratio[error == 0] = 0.0  # 0 / 0: an exact zero where nothing was summed
    ratio[~np.isfinite(out)] = math.inf
    ratio[overflows] = 0.0
    odd = ~np.isfinite(value)
    if odd.any():
        same = (out[odd] == value[odd]) | (np.isnan(out[odd]) & np.isnan(value[odd]))
        ratio[odd] = np.where(same, 0.0, math.inf)
    ratio[np.isnan(ratio)] = math.inf  # what is left: a bound that is NaN
    return ratio
