"""An array's contents as a declaration states them: a recipe to draw similar ones, or a file with the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .draws import LARGE, drawn_again

SAMPLE = 1 << 20
"""Elements that are looked at, at equal distances."""

FEW = 256
"""Arrays of fewer elements are kept: nobody can tell how they were drawn."""

PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
NORMAL = np.array([-1.645, -0.674, 0.0, 0.674, 1.645])  # the normal distribution's quantiles at these places


class ContentsTooLargeError(Exception):
    """An array's contents would have to be kept, and are larger than is allowed."""


def described(array: Any, *, as_they_are: bool, file: Path, limit_bytes: int) -> dict[str, Any]:
    """A recipe for such contents: `full`, `normal` or `uniform` with its numbers; else a `file`, which is written.

    With `as_they_are` the very contents: `full`, `seeded` where they can be drawn again, else a file.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, -(-flat.size // SAMPLE))
    sample = flat[::step]
    if flat.size and bool((sample == sample[0]).all()) and bool((flat == flat[0]).all()):
        value = float(flat[0]) if flat.dtype.kind == "f" else flat[0].item()
        return {"kind": "full", "value": value, "dtype": flat.dtype.name}
    if not as_they_are and sample.size > FEW and flat.dtype.kind == "f" and bool(np.isfinite(sample).all()):
        drawn = distribution(sample.astype(np.float64))
        if drawn is not None:
            return drawn
    seeded = drawn_again(flat) if flat.size >= LARGE else None
    if seeded is not None:
        return seeded
    if flat.nbytes > limit_bytes:
        raise ContentsTooLargeError(f"{flat.nbytes / 2**20:.0f} MiB")
    np.save(file, array)
    return {"kind": "file", "file": file.name}


def distribution(sample: Any) -> dict[str, Any] | None:
    """The distribution that it looks drawn from, each element by itself."""
    noise = 5 / np.sqrt(sample.size)
    mean, deviation = float(sample.mean()), float(sample.std())
    standard = (sample - mean) / deviation
    if abs(float((standard[1:] * standard[:-1]).mean())) > noise:
        return None  # neighbours go together
    low, high = float(sample.min()), float(sample.max())
    quantiles = np.quantile(sample, PLACES)
    if np.abs((quantiles - mean) / deviation - NORMAL).max() < 2 * noise:
        return {
            "kind": "normal",
            "mean": _rounded(mean, deviation, noise),
            "deviation": _rounded(deviation, deviation, noise),
        }
    if np.abs((quantiles - low) / (high - low) - PLACES).max() < noise:
        return {"kind": "uniform", "low": _rounded(low, high - low, noise), "high": _rounded(high, high - low, noise)}
    return None


def _rounded(value: float, scale: float, noise: float) -> float:
    """The value rounded to two digits of the scale, or to a whole number of scales where only noise is between."""
    whole = round(value / scale)
    if abs(value / scale - whole) < noise and abs(whole) < 2 and abs(scale - 1) < noise:
        return float(whole)
    return round(value, 1 - int(np.floor(np.log10(scale)))) + 0.0
