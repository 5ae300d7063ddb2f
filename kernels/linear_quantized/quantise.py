"""Weights of a layer as the whole numbers and scales that linear_quantized reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.linear_quantized.reference import GROUP, MIDDLE

LARGEST = {"int8": 127, "int4": 7, "int4_zeros": 15}
"""The whole number for the largest magnitude: with a zero point, for the largest distance from the least."""


def quantised(
    weights: NDArray[Any], kind: str, group: str, dtype: str
) -> tuple[NDArray[np.int8 | np.uint8], NDArray[Any]]:
    """W and S of the kernel for these weights (n, k): rounded to the nearest multiple of their group's scale.

    `kind` and `group` are the kernel's options `weights` and `group`. A scale is the group's largest magnitude over 127
    or 7; with zero points, its span over 15, zero included. It is rounded to `dtype` before weights are divided by it.
    Raises ValueError for weights that are not finite, and where k or a scale does not fit.
    """
    n, k = weights.shape
    if k == 0 or k % GROUP:
        raise ValueError(f"k is {k} and must be a multiple of {GROUP}, the length of a group")
    values = weights.astype(np.float64).reshape(n, 1 if group == "row" else k // GROUP, -1)
    if not np.isfinite(values).all():
        raise ValueError("has an infinity or a NaN, which no whole number stands for")
    least = np.minimum(values.min(axis=-1), 0.0)
    span = values.max(axis=-1).clip(min=0.0) - least if kind == "int4_zeros" else np.abs(values).max(axis=-1)
    with np.errstate(over="ignore"):
        scales = (span / LARGEST[kind]).astype(dtype)
    exact = scales.astype(np.float64)
    if not np.isfinite(exact).all():
        raise ValueError(f"has a group whose scale, {np.max(span) / LARGEST[kind]:.3g}, is too large for {dtype}")
    step = np.where(exact == 0, 1.0, exact)[..., None]
    if kind == "int8":
        return np.rint(values / step).clip(-127, 127).astype(np.int8).reshape(n, k), scales
    zeros = np.rint(-least[..., None] / step).clip(0, 15) if kind == "int4_zeros" else np.full_like(step, MIDDLE)
    whole = (np.rint(values / step) + zeros).clip(0, 15).astype(np.uint8).reshape(n, k)
    if kind == "int4_zeros":
        scales = np.stack([scales, zeros[..., 0].astype(dtype)], axis=-1)
    return two_in_a_byte(whole), scales


def two_in_a_byte(whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """W of the kernel for numbers from 0 to 15, (n, k): that of the even k in the lower half of its byte."""
    return (whole[:, ::2] | whole[:, 1::2] << 4).astype(np.uint8)
