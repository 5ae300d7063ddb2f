"""Arrays as a kernel sees them: plain numbers in the order of memory."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np


@lru_cache(maxsize=1024)
def seen(dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> dict[str, Any]:
    """The description of a tensor: `dtype`, `shape` in memory order, and `strided` where its memory has gaps.

    Complex numbers and vectors are one axis more, truth values are bytes; what has no such meaning is raw bytes.
    """
    dtype = np.dtype(dtype)
    name, components = plain(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    described: dict[str, Any] = {"kind": "tensor", "bytes": size_bytes}
    if not is_row_major(dtype.itemsize, shape, strides):
        order = by_stride(strides)
        permuted = tuple(shape[axis] for axis in order)
        if is_row_major(dtype.itemsize, permuted, tuple(strides[axis] for axis in order)):
            shape = permuted
        else:
            described["strided"] = True
    return {**described, "dtype": name, "shape": (*shape, components) if components > 1 else shape}


def by_stride(strides: tuple[int, ...]) -> list[int]:
    """The axes of an array, the largest stride first."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def is_row_major(item_bytes: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements lie in order without gaps, the last axis fastest."""
    expected = item_bytes
    for size, stride in zip(reversed(shape), reversed(strides)):  # noqa: B905 - Python 3.9 has no strict
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def plain(dtype: Any) -> tuple[str, int]:
    """The dtype of the numbers, and how many an element has."""
    if dtype.kind == "c":
        return f"float{dtype.itemsize * 4}", 2
    if dtype.kind == "b":
        return "uint8", 1
    if dtype.kind in "iuf":
        return dtype.name, 1
    bases = {one[0] for one in (dtype.fields or {}).values()}
    if len(bases) == 1:
        (base,) = bases
        if base.kind in "iuf" and base.itemsize * len(dtype.fields) == dtype.itemsize:
            return base.name, len(dtype.fields)
    return "uint8", dtype.itemsize


def as_bytes(array: Any, strides: tuple[int, ...]) -> Any:
    """The array's numbers as bytes, as they lie in the memory of an array with these strides; a copy."""
    return np.frombuffer(array.transpose(by_stride(strides)).tobytes(), np.uint8)
