"""conv2d's variants on CUDA cores, which also run on the CPU: their parameters, geometry, and what is worth a trial."""

from __future__ import annotations

import math

from tilewright.kernels.conv2d.shape import (
    constraint_on_product,
    is_nhwc,
    out_channels,
    out_extents,
    product,
    takes_batch,
)
from tilewright.kernels.gemm import declaration as gemm
from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import always

MOST_UNROLLED = 1024  # multiplications and loads of a thread of `depthwise`: each is an instruction
MOST_OUTPUTS = 64  # of a thread of `depthwise`, each in a register


def is_depthwise(p: Problem) -> bool:
    """Whether each channel is convolved by itself."""
    return bool(p.options["depthwise"])


def elements(p: Problem) -> int:
    """The number of elements of Y."""
    return p.shape["batch"] * math.prod(out_extents(p)) * out_channels(p)


def launch_direct(c: Values, p: Problem) -> Launch:
    """A launch of one thread for each element of Y."""
    return Launch((ceil_div(elements(p), c.THREADS), 1, 1), (c.THREADS, 1, 1))


def launch_implicit_gemm(c: Values, p: Problem) -> Launch:
    """A launch of a block for each tile of the product inside."""
    return gemm.launch_wpt(c, product(p))


def shared_bytes_implicit_gemm(c: Values, p: Problem) -> int:
    """Bytes of two buffers for both operands of the product inside."""
    return gemm.shared_bytes_wpt(c, product(p))


def vector_widths(c: Values, p: Problem) -> tuple[int, int]:
    """How many elements of patches and of filters a thread loads at once."""
    along_channels = c.VECTOR_WIDTH if is_nhwc(p) and p.shape["channels"] % c.VECTOR_WIDTH == 0 else 1
    ordered = is_nhwc(p) or p.shape["kernel_h"] * p.shape["kernel_w"] == 1
    depth = product(p).shape["k"]
    return along_channels, c.VECTOR_WIDTH if ordered and depth % c.VECTOR_WIDTH == 0 else 1


def every_thread_loads(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a step brings a vector or more of each operand to every thread."""
    tiles = zip((c.TILE_M, c.TILE_N), vector_widths(c, p), strict=True)
    return all(tile * c.TILE_K >= width * gemm.threads_wpt(c) for tile, width in tiles)


def launch_depthwise(c: Values, p: Problem) -> Launch:
    """A launch of a thread for each run of outputs of some channels."""
    height, width = out_extents(p)
    runs = ceil_div(height, c.RUN_H) * ceil_div(width, c.RUN_W)
    threads = p.shape["batch"] * runs * (out_channels(p) // c.VECTOR_WIDTH)
    return Launch((ceil_div(max(1, threads), c.THREADS), 1, 1), (c.THREADS, 1, 1))


def span(c: Values, p: Problem) -> int:
    """Columns of X under a run."""
    return (c.RUN_W - 1) * p.shape["stride_w"] + p.shape["dilation_w"] * (p.shape["kernel_w"] - 1) + 1


def channels_divide(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread's channels are contiguous, of one filter each, and at most 16 bytes."""
    fits = c.VECTOR_WIDTH * p.item_bytes <= gemm.VECTOR_BYTES and p.shape["channels"] % c.VECTOR_WIDTH == 0
    return c.VECTOR_WIDTH == 1 or (is_nhwc(p) and p.shape["filters"] == 1 and fits)


def runs_fit(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half a run would not cover the output too, and a thread's code is not too long."""
    height, width = out_extents(p)
    taps = p.shape["kernel_h"] * p.shape["kernel_w"]
    outputs = c.RUN_H * c.RUN_W * c.VECTOR_WIDTH
    code = c.RUN_H * (p.shape["kernel_h"] * span(c, p) + c.RUN_W * c.VECTOR_WIDTH * taps)
    small = outputs <= MOST_OUTPUTS and code <= MOST_UNROLLED
    alone = c.RUN_H == c.RUN_W == c.VECTOR_WIDTH == 1  # there is always one
    return alone or (small and (c.RUN_H == 1 or height > c.RUN_H // 2) and (c.RUN_W == 1 or width > c.RUN_W // 2))


DIRECT = Variant(
    name="direct",
    starts_search=False,
    doc="Each thread computes one element of Y directly from global memory.",
    source="direct.cu",
    launch=launch_direct,
    parameters=(powers_of_two("THREADS", 32, 1024, default=256, doc="threads of a block"),),
    takes_size=takes_batch,
    is_batch_invariant=always,
)

IMPLICIT_GEMM = Variant(
    name="implicit_gemm",
    doc="The product of patches and filters by tiles in shared memory, on CUDA cores.",
    source="implicit_gemm.cu",
    launch=launch_implicit_gemm,
    parameters=gemm.WPT.parameters,
    constraints=tuple(
        {
            "rows of A or B divide into vectors": Constraint(
                "patches or filters divide into vectors",
                lambda c, p, _d: c.VECTOR_WIDTH == 1 or max(vector_widths(c, p)) > 1,
            ),
            "every thread loads from both operands": Constraint(
                "every thread loads patches and filters", every_thread_loads
            ),
        }.get(constraint.name)
        or constraint_on_product(constraint)
        for constraint in gemm.WPT.constraints
    ),
    static_shared_bytes=shared_bytes_implicit_gemm,
    supports=lambda p: not is_depthwise(p),
    takes_size=takes_batch,
    is_batch_invariant=always,
)

DEPTHWISE = Variant(
    name="depthwise",
    doc="Each channel by itself: a thread a run of outputs, inputs shared between them read once.",
    source="depthwise.cu",
    launch=launch_depthwise,
    parameters=(
        powers_of_two("THREADS", 32, 512, default=128, doc="threads of a block"),
        choice("VECTOR_WIDTH", 1, 2, 4, default=1, doc="neighbouring channels of a thread, with the layout nhwc"),
        choice("RUN_H", 1, 2, 4, default=1, doc="rows of outputs of a thread"),
        choice("RUN_W", 1, 2, 4, 7, 8, default=4, doc="columns of outputs of a thread"),
    ),
    constraints=(
        Constraint("channels divide into vectors", channels_divide),
        Constraint("runs fit the output and the registers", runs_fit),
    ),
    supports=is_depthwise,
    takes_size=takes_batch,
    is_batch_invariant=always,
)
