"""conv2d's variants on tensor cores: gemm's on the product inside, with the layer's epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tilewright.kernels.conv2d.shape import constraint_on_product, is_nhwc, is_pointwise, product, shape_x, takes_batch
from tilewright.kernels.gemm import tensor_mma_space as mma
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.kernel import Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values

MOST_LINES = 2**15
Result = TypeVar("Result")

MOST_ELEMENTS = 2**31 - 2**24  # of X: offsets have 32 bits, and the corner of a patch may lie outside of an image


def on_product(ask: Callable[[Values, Problem], Result]) -> Callable[[Values, Problem], Result]:
    """The predicate, asked of the gemm that the convolution is."""
    return lambda c, p: ask(c, product(p))


def copies_are_few(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread starts few copies a step: of neighbouring channels, of pixels, or of single elements."""
    shape, taps = p.shape, p.shape["kernel_h"] * p.shape["kernel_w"]
    patch = shape["channels"] if is_nhwc(p) else shape["height"] * shape["width"] if is_pointwise(p) else 1
    filters = taps * shape["channels"] if is_nhwc(p) or taps == 1 else 1
    sides = ((mma.tile_m(c), patch), (mma.tile_n(c), filters))
    copies = sum(ceil_div(tile * c.TILE_K // math.gcd(line, mma.QUAD), mma.threads(c)) for tile, line in sides)
    return copies <= mma.MOST_COPIES


def is_indexable(p: Problem) -> bool:
    """Whether 32 bits can number the elements of X and 16 the lines of an image, and there is one product."""
    lines = max(p.shape["height"] + p.shape["padding"], p.shape["width"] + p.shape["padding_w"])
    return not p.options["depthwise"] and math.prod(shape_x(p)) <= MOST_ELEMENTS and lines < MOST_LINES


def is_matrix_product(p: Problem) -> bool:
    """Whether the images are stored as a matrix in which each row is a pixel and a patch."""
    return is_nhwc(p) and is_pointwise(p)


def convolving(variant: Variant, doc: str, admits: Callable[[Problem], bool] = is_indexable) -> Variant:
    """The convolution by gemm's variant."""
    return replace(
        variant,
        doc=doc,
        launch=on_product(variant.launch),
        before=tuple(replace(one, launch=on_product(one.launch)) for one in variant.before),
        packing=(),
        kept_bytes=lambda _p: 0,
        constraints=tuple(
            Constraint(constraint.name, copies_are_few)
            if constraint.holds is mma.copies_are_few
            else constraint_on_product(constraint)
            for constraint in variant.constraints
        ),
        static_shared_bytes=on_product(variant.static_shared_bytes),
        workspace_bytes=on_product(variant.workspace_bytes),
        takes_size=takes_batch,
        is_sound_at_launch=lambda c, p, d: variant.is_sound_at_launch(c, product(p), d),
        supports=lambda p: admits(p) and variant.supports(product(p)),
        has_room=lambda p, d: variant.has_room(product(p), d),
        start=lambda p, d: variant.start(product(p), d),
    )


def pointwise(variant: Variant, doc: str, name: str, source: str) -> Variant:
    """The convolution by gemm's variant, for 1x1 filters over images that are stored as a matrix."""
    of_matrix = convolving(variant, doc, is_matrix_product)
    return replace(of_matrix, name=name, source=source, takes_size=lambda _p: False, most_at_once=0)


TENSOR3XTF32 = convolving(mma.TENSOR3XTF32, "FP32 accuracy on tensor cores, patches copied from the images directly.")
TENSOR1XTF32 = convolving(mma.TENSOR1XTF32, "Inputs rounded to TF32, on tensor cores.")

POINTWISE3XTF32_SM90 = pointwise(
    TENSOR3XTF32_SM90,
    "Patches of one pixel, channels contiguous: FP32 accuracy by Hopper's wgmma, as gemm's variant of that name.",
    "pointwise3xtf32_sm90",
    "pointwise_sm90.cu",
)
POINTWISE1XTF32_SM90 = pointwise(
    TENSOR1XTF32_SM90,
    "Patches of one pixel, channels contiguous: TF32 products by Hopper's wgmma.",
    "pointwise1xtf32_sm90",
    "pointwise_sm90.cu",
)
POINTWISE3XFP16_SM90 = pointwise(
    TENSOR3XFP16_SM90,
    "Patches of one pixel, channels contiguous: FP32 accuracy by FP16 parts on Hopper's wgmma, packed first.",
    "pointwise3xfp16_sm90",
    "pointwise_fp16_sm90.cu",
)
