"""Verification: a result compared with the float64 reference, component by component."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.kernel import Reference
from tilewright.kernels.problem import UNIT_ROUNDOFF
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.outcome import Executable, Verification

C_DEFAULT = 2.0
"""How many bounds an error may reach. Rounding errors of a sum of k terms grow like sqrt(k) (Higham and Mary 2019,
theorem 2.4), with a constant near 1 for uniform inputs; cuBLAS itself reached 1.196 in our measurement."""

_CHUNK = 1 << 18
"""Components compared at a time: temporaries of 2 MiB stay in the cache and off the memory bill at 4096 x 4096."""


def tolerance(reference: Reference, dtype: str) -> NDArray[np.float64]:
    """The bound with c = 1 on each component's error: sqrt(terms) * unit roundoff * magnitude."""
    return reference.magnitude * bound_factor(reference.terms, reference.unit_roundoff, dtype)


def bound_factor(terms: int, unit_roundoff: float | None, dtype: str) -> float:
    """The factor from a magnitude to its bound; `unit_roundoff` None is the dtype's own."""
    return math.sqrt(terms) * (UNIT_ROUNDOFF[dtype] if unit_roundoff is None else unit_roundoff)


def worse(first: Verification, second: Verification) -> Verification:
    """The one with more wrong components, or else the one nearer to its bound."""
    return max(first, second, key=lambda v: (v.wrong, v.bound_ratio))


def compare(out: NDArray[np.floating], reference: Reference, dtype: str, c: float = C_DEFAULT) -> Verification:
    """How far `out` is from the reference, in units of the bound, and which components are over `c` bounds.

    A NaN or infinity where the reference is finite is wrong with ratio inf; where the reference is not finite, only
    the same value is right. Where the bound is zero, only the exact value is right. Raises ValueError on a shape
    that is not the reference's.
    """
    if out.shape != reference.value.shape:
        raise ValueError(f"the output has shape {out.shape}, the reference {reference.value.shape}")
    flat_out, value, magnitude = out.reshape(-1), reference.value.reshape(-1), reference.magnitude.reshape(-1)
    factor = bound_factor(reference.terms, reference.unit_roundoff, dtype)
    worst, wrong, first = 0.0, 0, None
    for start in range(0, flat_out.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        ratio = _ratios(flat_out[part], value[part], magnitude[part], factor)
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


def verify_configuration(bench: Bench, executable: Executable) -> Verification:
    """The worst over all kinds of inputs that the bench has; a configuration that may win passes all of them."""
    return _worst_of_kinds(bench, executable) or bench.verify(executable)


def verify_library_call(bench: Bench, executable: Executable) -> Verification | None:
    """The worst over all kinds of inputs; None where the library's result cannot be read."""
    return _worst_of_kinds(bench, executable)


def _worst_of_kinds(bench: Bench, executable: Executable) -> Verification | None:
    verifications = bench.verify_each_kind(executable)
    return None if verifications is None else reduce(worse, verifications)


def _ratios(
    out: NDArray[np.floating], value: NDArray[np.float64], magnitude: NDArray[np.float64], factor: float
) -> NDArray[np.float64]:
    """Error over bound of each component; never NaN."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(out.astype(np.float64) - value)
        ratio = error / (magnitude * factor)
    ratio[error == 0] = 0.0  # 0 / 0: an exact zero where nothing was summed
    ratio[~np.isfinite(out)] = math.inf
    odd = ~np.isfinite(value)
    if odd.any():
        same = (out[odd] == value[odd]) | (np.isnan(out[odd]) & np.isnan(value[odd]))
        ratio[odd] = np.where(same, 0.0, math.inf)
    ratio[np.isnan(ratio)] = math.inf  # what is left: a bound that is NaN
    return ratio
