"""The right answer of linear_gated in float64, and what its error is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.kernels.dtypes import SMALLEST_NORMAL, UNIT_ROUNDOFF
from tilewright.kernels.kernel import MAX_AXIS, Arrays, Reference
from tilewright.kernels.linear.declaration import KERNEL as LINEAR
from tilewright.kernels.linear.reference import REACH, Numbers, activated_sums
from tilewright.kernels.problem import Problem

_CHUNK = 1 << 16
"""Results that a thread makes at a time, so few that they stay in a core's cache."""


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def linear_gated_reference(p: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """act(X Gᵀ) * (X Uᵀ), by NumPy's BLAS. arrays: X (m, k), W (2 n, k).

    With u the unit roundoff and r = c sqrt(k) u, the activated sum f is off by at most r F, F being the magnitude of
    linear's reference, and the other sum z by r Z, Z being the sum of its products' sizes. So the product is off by r
    (F |z| + |f| Z) + r² F Z, and rounded once more. The last r is taken for the largest c of interest. An activated sum
    below the smallest normal number is 0, as gate.cuh has it; F has room for that, and relu leaves all digits. The
    parts that tensor cores cut off of both sums reach the product: its terms are those of both, 2 k.
    """
    x, w = (arrays[name].astype(np.float64) for name in ("X", "W"))
    return gated(p, arrays, x @ w.T, np.abs(x) @ np.abs(w).T)


def layer(p: Problem) -> Problem | None:
    """The layer that has the sums of both matrices; None where its columns are too many for an axis."""
    columns = 2 * p.shape["n"]
    return LINEAR.problem({**p.shape, "n": columns}, p.dtype) if columns <= MAX_AXIS else None


def gated(p: Problem, _arrays: Arrays, sums: Numbers, sizes: Numbers) -> Reference:
    """The reference from X Wᵀ and |X| |W|ᵀ."""
    value, magnitude = (np.empty((p.shape["m"], p.shape["n"])) for _ in range(2))
    rows = max(1, _CHUNK // p.shape["n"])
    parts = [slice(first, first + rows) for first in range(0, len(value), rows)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda part: _gate(p, sums[part], sizes[part], value[part], magnitude[part]), parts))
    return Reference(value, magnitude, 2 * p.shape["k"])


@np.errstate(invalid="ignore")  # which a thread has for itself
def _gate(p: Problem, sums: Numbers, sizes: Numbers, value: Numbers, magnitude: Numbers) -> None:
    """Some rows of sums and their sizes, into those of values and magnitudes."""
    n, k = p.shape["n"], p.shape["k"]
    gate = activated_sums(p, np.zeros(n), sums[:, :n].copy(), sizes[:, :n].copy(), k)
    if p.options["activation"] != "relu":
        gate.value[np.abs(gate.value) < SMALLEST_NORMAL[p.sum_dtype]] = 0
    other, size = sums[:, n:], sizes[:, n:]
    root, unit = math.sqrt(k), UNIT_ROUNDOFF[p.sum_dtype]
    value[...] = gate.value * other
    reach = REACH * root * unit * size
    magnitude[...] = gate.magnitude * (np.abs(other) + reach) + np.abs(gate.value) * size + np.abs(value) / root
    magnitude /= math.sqrt(2)
