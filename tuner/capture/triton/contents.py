"""A captured array's contents as a declaration states them, from a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tuner.adopt.script.contents import FEW, distribution

FEW_VALUES = 16
"""The number of different values up to which contents are drawn from the values, not from a range."""


def contents_of(sample: NDArray[Any], elements: int, file: Path) -> dict[str, Any]:
    """A recipe for such contents; a `file`, which is written, for whole numbers whose order matters."""
    if sample.dtype.kind == "f":
        return _numbers(sample)
    flat = sample.reshape(-1)
    values = np.unique(flat)
    if values.size == 1:
        return {"kind": "full", "value": flat[0].item(), "dtype": flat.dtype.name}
    is_whole, is_sorted = flat.size == elements, bool((flat[1:] >= flat[:-1]).all())
    if is_whole and values.size == flat.size == elements and values[0] == 0 and values[-1] == elements - 1:
        return {"kind": "places" if is_sorted else "permutation", "dtype": flat.dtype.name}
    if is_sorted and is_whole and values.size > 2:  # offsets of parts, such as cu_seqlens
        np.save(file, flat)
        return {"kind": "file", "file": file.name}
    if values.size <= FEW_VALUES:
        return {"kind": "choice", "values": values.tolist(), "dtype": flat.dtype.name}
    return {"kind": "integers", "low": int(values[0]), "high": int(values[-1]), "dtype": flat.dtype.name}


def _numbers(sample: NDArray[Any]) -> dict[str, Any]:
    """Floating-point numbers: one value, a few, or a distribution with this mean and deviation."""
    flat = sample.reshape(-1)
    values = np.unique(flat[~np.isnan(flat)])
    if values.size <= max(1, min(FEW_VALUES, flat.size // 4)):
        return _few(flat, values)
    finite = flat[np.isfinite(flat)].astype(np.float64)
    found = distribution(finite) if finite.size == flat.size > FEW else None
    if found is not None:
        return found
    mean, deviation = float(finite.mean()), float(finite.std()) or 1.0
    if not np.isfinite(deviation):  # memory that nobody has written yet
        return {"kind": "normal", "mean": 0, "deviation": 1}
    digits = 2 - int(np.floor(np.log10(deviation)))
    return {"kind": "normal", "mean": round(mean, digits), "deviation": round(deviation, digits)}


def _few(flat: NDArray[Any], values: NDArray[Any]) -> dict[str, Any]:
    if values.size == 1:
        return {"kind": "full", "value": float(values[0]), "dtype": flat.dtype.name}
    if not values.size:
        return {"kind": "normal", "mean": 0, "deviation": 1}
    return {"kind": "choice", "values": [float(one) for one in values], "dtype": flat.dtype.name}
