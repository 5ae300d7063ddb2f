"""conv2d: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.kernels.conv2d.cuda_core_spaces import DEPTHWISE, DIRECT, IMPLICIT_GEMM
from tilewright.kernels.conv2d.reference import conv2d_reference
from tilewright.kernels.conv2d.shape import (
    OPTIONAL_AXES,
    fault,
    of_pixels,
    out_channels,
    posed_by,
    product,
    shape_w,
    shape_x,
    shape_y,
    summed_w,
    terms,
)
from tilewright.kernels.conv2d.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.conv2d.tensor_variants import (
    POINTWISE1XTF32_SM90,
    POINTWISE3XFP16_SM90,
    POINTWISE3XTF32_SM90,
    TENSOR1XTF32,
    TENSOR3XTF32,
)
from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.kernel import Kernel, Option, RelatedKernel, Tensor
from tilewright.kernels.linear.reference import ACTIVATIONS
from tilewright.kernels.problem import Problem


def flops(p: Problem) -> int:
    """Two for each product, as libraries count them: also for those with padding; bias and activation are left out."""
    return 2 * math.prod(shape_y(p)) * (terms(p) - 1)


def bytes_moved(p: Problem) -> int:
    """Read X, W and b once, write Y once."""
    return (sum(math.prod(shape(p)) for shape in (shape_x, shape_w, shape_y)) + out_channels(p)) * p.item_bytes


AS_OF_GEMM = {
    "wpt": "implicit_gemm",
    "tensor3xtf32_sm90": "pointwise3xtf32_sm90",
    "tensor3xfp16_sm90": "pointwise3xfp16_sm90",
}
"""Names of gemm's variants in conv2d, for those that have another name here."""


def akin(p: Problem) -> Sequence[RelatedKernel]:
    """The layer without an activation, and the gemm inside: each of its rows is an image of one pixel."""
    if p.options["depthwise"]:
        return ()
    products = gemm.akin(product(p))
    own = RelatedKernel("conv2d", {"layout": p.options["layout"], "accuracy": p.options["accuracy"]})
    return (own, *(RelatedKernel(*kin[:2], _pixels_of, AS_OF_GEMM, has_library=False) for kin in products))


def _pixels_of(shape: Mapping[str, int]) -> Mapping[str, int]:
    return of_pixels(shape["m"], shape["n"], shape["k"])


def plain(p: Problem) -> Problem:
    """The gemm inside as the convolution of single pixels."""
    if p.options["depthwise"]:
        return p
    sizes = of_pixels(**product(p).stated_shape)
    return KERNEL.problem(sizes, p.dtype, dict(p.option_items))


KERNEL = Kernel(
    name="conv2d",
    doc="Y = act(conv(X, W) + b), a convolution of images with its bias and activation in one launch.",
    folder=Path(__file__).parent,
    axes=("batch", "height", "width", "channels", "filters", "kernel_h", "kernel_w"),
    optional_axes=OPTIONAL_AXES,
    launch_axes=("batch",),
    largest_at_launch={"batch": 256},
    row_axis="batch",
    fault=fault,
    posed_by=posed_by,
    dtypes=("float32", "float64"),
    options=(
        Option(
            "layout", ("nhwc", "nchw"), default="nhwc", doc="whether channels or pixels are contiguous, in X, W and Y"
        ),
        Option("depthwise", (False, True), default=False, doc="each channel by itself, by `filters` filters"),
        Option(
            "activation", tuple(ACTIVATIONS), default="none", doc="act; gelu is the exact form, by the error function"
        ),
        gemm.ACCURACY,
    ),
    arguments=(
        Tensor("X", "input", shape_x, summed=lambda p: -1 if p.options["layout"] == "nhwc" else 1),
        Tensor("W", "input", shape_w, summed=summed_w),
        Tensor("b", "input", lambda p: (out_channels(p),)),
        Tensor("Y", "output", shape_y),
    ),
    variants=(
        DIRECT,
        IMPLICIT_GEMM,
        DEPTHWISE,
        TENSOR3XTF32,
        POINTWISE3XTF32_SM90,
        POINTWISE3XFP16_SM90,
        TENSOR3XFP16_SM90,
        TENSOR1XTF32,
        POINTWISE1XTF32_SM90,
    ),
    flops=flops,
    bytes_moved=bytes_moved,
    akin=akin,
    plain=plain,
    reference=conv2d_reference,
    ranking_l2="warm",  # X was just written by the layer before, and W is used batch after batch
    default_variant="implicit_gemm",
    example_shape={
        "batch": 1,
        "height": 28,
        "width": 28,
        "channels": 64,
        "filters": 64,
        "kernel_h": 3,
        "kernel_w": 3,
        "padding": 1,
    },
)
