"""The right answer of conv2d, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from tilewright.kernels.conv2d.shape import is_nhwc, out_channels, out_extents, shape_y, terms
from tilewright.kernels.kernel import Arrays, Reference
from tilewright.kernels.linear.reference import activated_sums
from tilewright.kernels.problem import Problem

Numbers = NDArray[np.float64]

_BLOCK = 1 << 21
"""Numbers of patches at a time: 16 MiB."""


@np.errstate(invalid="ignore")  # what has an infinity or NaN in it is as IEEE 754 has it
def conv2d_reference(problem: Problem, arrays: Arrays, _scalars: Mapping[str, float]) -> Reference:
    """act(conv(X, W) + b): products of patches and filters by NumPy's BLAS. Its error is bound as a layer's.

    Image after image: what is done to the sums of one stays in the caches.
    """
    bias, filters = arrays["b"].astype(np.float64), arrays["W"].astype(np.float64)
    if not is_nhwc(problem) and not problem.options["depthwise"]:
        filters = np.moveaxis(filters, 1, -1)
    taps = np.ascontiguousarray(np.moveaxis(filters, 0, -1))  # by tap (channels, filters), or by output channel
    value, magnitude = np.empty(shape_y(problem)), np.empty(shape_y(problem))
    for number, image in enumerate(arrays["X"]):
        pixels = (image if is_nhwc(problem) else np.moveaxis(image, 0, -1)).astype(np.float64, order="C")
        sums, sizes = _sums(problem, pixels, taps), _sums(problem, np.abs(pixels), np.abs(taps))
        done = activated_sums(problem, bias, sums, sizes, terms(problem))
        for whole, part in ((value, done.value), (magnitude, done.magnitude)):
            whole[number] = part if is_nhwc(problem) else np.moveaxis(part, -1, 0)
    return Reference(value, magnitude, done.terms, done.unit_roundoff)


def _sums(problem: Problem, image: Numbers, taps: Numbers) -> Numbers:
    """The sums of products as (height, width, channels), from some rows of patches at a time."""
    shape, (height, width) = problem.shape, out_extents(problem)
    out = np.empty((height, width, out_channels(problem)))
    rows = max(1, _BLOCK // (width * shape["kernel_h"] * shape["kernel_w"] * shape["channels"]))
    patches = _patches(problem, image)
    for first in range(0, height, rows):
        block = slice(first, min(first + rows, height))
        if problem.options["depthwise"]:
            by_channel = taps.reshape(shape["kernel_h"], shape["kernel_w"], shape["channels"], shape["filters"])
            out[block] = np.einsum("yxrsc,rscf->yxcf", patches[block], by_channel).reshape(out[block].shape)
        else:
            matrix = patches[block].reshape(-1, taps[..., 0].size)  # a copy: patches overlap
            out[block] = (matrix @ taps.reshape(matrix.shape[1], -1)).reshape(out[block].shape)
    return out


def _patches(problem: Problem, image: Numbers) -> Numbers:
    """The patch of each output pixel, a view of the padded image: (height, width, kernel_h, kernel_w, channels)."""
    shape = problem.shape
    padded = np.pad(image, [(shape["padding"],) * 2, (shape["padding_w"],) * 2, (0, 0)])
    down, across, along = padded.strides
    extents = (*out_extents(problem), shape["kernel_h"], shape["kernel_w"], shape["channels"])
    steps = (down * shape["stride"], across * shape["stride_w"], down * shape["dilation"], across * shape["dilation_w"])
    return as_strided(padded, extents, (*steps, along), writeable=False)
