"""gemm: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tilewright.kernels.dtypes import HALF, ITEM_BYTES
from tilewright.kernels.gemm.layout import (
    OPTIONAL_AXES,
    posed_by,
    row_divisors,
    shape_of,
    strides_of,
    takes_rows_or_batch,
)
from tilewright.kernels.gemm.reference import gemm_reference, terms
from tilewright.kernels.gemm.register_space import REGISTER
from tilewright.kernels.gemm.streamed_half_sm90_space import STREAMED_HALF_SM90
from tilewright.kernels.gemm.streamed_half_space import MOST_ROWS, STREAMED_HALF
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.gemm.tensor_fp16_small_sm90_space import TENSOR3XFP16_SMALL_SM90
from tilewright.kernels.gemm.tensor_fp64_space import TENSOR_FP64
from tilewright.kernels.gemm.tensor_half_packed_sm90_space import TENSOR_HALF_PACKED_SM90
from tilewright.kernels.gemm.tensor_half_sm90_space import TENSOR_HALF_SM90
from tilewright.kernels.gemm.tensor_half_space import TENSOR_HALF
from tilewright.kernels.gemm.tensor_half_turned_sm90_space import TENSOR_HALF_TURNED_SM90
from tilewright.kernels.gemm.tensor_mma_space import TENSOR1XTF32, TENSOR3XTF32
from tilewright.kernels.gemm.tensor_sliced_space import TENSOR3XTF32_SLICED
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_MULTICAST_SM90, TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.kernel import Kernel, Launch, Option, RelatedKernel, Scalar, Tensor, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.reference import ProductReference
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import always

SMALLEST_TILE = 16  # along m and n; along k it is 8
VECTOR_BYTES = 16  # the widest access of one thread to memory (CUDA C++ Programming Guide, "Device Memory Accesses")
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver, since compute capability 8.0 (CUDA guide, 16.7)
MOST_BLOCKS_Y = 65535  # of a grid along y (CUDA C++ Programming Guide, "Compute Capabilities")
OTHER_REGISTERS = 32  # addresses and counters beside the numbers held; sm_90, NVRTC 13.0: 20 to 40


ACCURACY = Option(
    "accuracy",
    ("fp32", "fp32-fma", "tf32"),
    default="fp32",
    doc="fp32: any arithmetic within the float32 error bound; fp32-fma: CUDA cores only; tf32: inputs of 10 bits",
    only_dtypes=("float32",),
)


OUTPUT = Option(
    "output",
    ("same", "float32"),
    default="same",
    doc="type of the results; same: that of the inputs; float32: that of the sums",
    only_dtypes=HALF,
    unstated=True,
)


def output_dtype(p: Problem) -> str:
    """The dtype in which C is stored."""
    return "float32" if p.options["output"] == "float32" else p.dtype


PACKED_B = Option(
    "packed_b",
    (False, True),
    default=False,
    doc="B is the same in every launch and is packed once, before the first",
    unstated=True,
)


def launch_naive(c: Values, p: Problem) -> Launch:
    """A launch of a thread an element, blocks of a matrix along x; y is the batch, or walks a compiled-in one."""
    blocks = ceil_div(p.shape["n"], c.BLOCK_X) * ceil_div(p.shape["m"], c.BLOCK_Y)
    most = p.shape["batch"] if p.at_launch else MOST_BLOCKS_Y
    return Launch((blocks, min(p.shape["batch"], most), 1), (c.BLOCK_X, c.BLOCK_Y, 1))


def launch_tiled(c: Values, p: Problem) -> Launch:
    """A launch of a square block for each square tile, tiles along x; y is the batch."""
    width = c.TILE_WIDTH
    blocks = ceil_div(p.shape["n"], width) * ceil_div(p.shape["m"], width)
    return Launch((blocks, p.shape["batch"], 1), (width, width, 1))


def launch_wpt(c: Values, p: Problem) -> Launch:
    """A launch of a block for each tile, tiles and threads along x; y is the batch."""
    blocks = ceil_div(p.shape["m"], c.TILE_M) * ceil_div(p.shape["n"], c.TILE_N)
    return Launch((blocks, p.shape["batch"], 1), (threads_wpt(c), 1, 1))


def threads_wpt(c: Values) -> int:
    """Threads of a block of `wpt`."""
    return (c.TILE_M // c.WPT_M) * (c.TILE_N // c.WPT_N)


def shared_bytes_tiled(c: Values, p: Problem) -> int:
    """Bytes of one tile of each operand, with rows one element longer."""
    return 2 * c.TILE_WIDTH * (c.TILE_WIDTH + 1) * p.item_bytes


def shared_bytes_wpt(c: Values, p: Problem) -> int:
    """Bytes of two buffers of both operands; an operand that is transposed on the way has rows padded by 16."""
    padding = VECTOR_BYTES // p.item_bytes
    pitch_a = c.TILE_M + (0 if p.options["trans_a"] else padding)
    pitch_b = c.TILE_N + (padding if p.options["trans_b"] else 0)
    return 2 * c.TILE_K * (pitch_a + pitch_b) * p.item_bytes


def every_thread_loads(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a step brings a vector or more of each operand to every thread."""
    widths = (c.VECTOR_WIDTH if divisor % c.VECTOR_WIDTH == 0 else 1 for divisor in row_divisors(p)[:2])
    return all(
        tile * c.TILE_K >= width * threads_wpt(c) for tile, width in zip((c.TILE_M, c.TILE_N), widths, strict=True)
    )


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    sizes = ((c.TILE_M, SMALLEST_TILE, "m"), (c.TILE_N, SMALLEST_TILE, "n"), (c.TILE_K, SMALLEST_TILE // 2, "k"))
    return all(tile == smallest or tile // 2 < p.shape[axis] for tile, smallest, axis in sizes)


def blocks_reside(c: Values, p: Problem, d: Limits) -> bool:
    """Whether MIN_BLOCKS blocks fit one multiprocessor, and asking for them changes what the compiler does."""
    if c.MIN_BLOCKS == 1:
        return True
    threads = c.MIN_BLOCKS * threads_wpt(c)
    binds = "ptx" in d.features and threads * d.max_registers_per_thread > d.registers_per_multiprocessor
    shared_bytes = c.MIN_BLOCKS * (shared_bytes_wpt(c, p) + RESERVED_SHARED_BYTES)
    return (
        binds
        and threads <= d.max_threads_per_multiprocessor
        and shared_bytes <= d.shared_bytes_per_multiprocessor
        and d.max_blocks_per_multiprocessor >= c.MIN_BLOCKS
    )


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether sums, shares of one step and prefetched numbers fit a thread's registers, by estimate."""
    threads = threads_wpt(c)
    prefetched = (c.TILE_M + c.TILE_N) * c.TILE_K // threads
    numbers = c.WPT_M * c.WPT_N + c.WPT_M + c.WPT_N + prefetched
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // (threads * c.MIN_BLOCKS))
    return numbers * p.item_bytes // 4 + OTHER_REGISTERS <= available


NAIVE = Variant(
    name="naive",
    starts_search=False,
    doc="Each thread computes one element of C directly from global memory.",
    source="naive.cu",
    launch=launch_naive,
    parameters=(
        powers_of_two("BLOCK_X", 4, 256, default=32, doc="columns of C in a block"),
        powers_of_two("BLOCK_Y", 1, 64, default=8, doc="rows of C in a block"),
    ),
    constraints=(Constraint("a block is whole warps", lambda c, _p, _d: c.BLOCK_X * c.BLOCK_Y % 32 == 0),),
    takes_size=takes_rows_or_batch,
    is_batch_invariant=always,
)

TILED = Variant(
    name="tiled",
    starts_search=False,
    doc="Square tiles in shared memory; each thread computes one element of C.",
    source="tiled.cu",
    launch=launch_tiled,
    parameters=(choice("TILE_WIDTH", 4, 8, 16, 24, 32, default=16, doc="rows and columns of a tile"),),
    static_shared_bytes=shared_bytes_tiled,
    takes_size=takes_rows_or_batch,
    is_batch_invariant=always,
)

WPT = Variant(
    name="wpt",
    doc="More work per thread: a rectangle of C in registers, double-buffered tiles in shared memory, vector loads.",
    source="wpt.cu",
    launch=launch_wpt,
    parameters=(
        powers_of_two("TILE_M", SMALLEST_TILE, 256, default=64, doc="rows of C that a block computes"),
        powers_of_two("TILE_N", SMALLEST_TILE, 256, default=64, doc="columns of C that a block computes"),
        powers_of_two("TILE_K", SMALLEST_TILE // 2, 32, default=16, doc="length of a step along k"),
        powers_of_two("WPT_M", 1, 16, default=4, doc="rows of C that a thread computes"),
        powers_of_two("WPT_N", 1, 16, default=4, doc="columns of C that a thread computes"),
        powers_of_two("VECTOR_WIDTH", 1, 4, default=4, doc="elements in one access to global memory"),
        powers_of_two("MIN_BLOCKS", 1, 4, default=1, doc="blocks that must fit a multiprocessor by registers"),
    ),
    constraints=(
        Constraint("a block is whole warps", lambda c, _p, _d: threads_wpt(c) % 32 == 0),
        Constraint("a vector is at most 16 bytes", lambda c, p, _d: c.VECTOR_WIDTH * p.item_bytes <= VECTOR_BYTES),
        Constraint(
            "rows of A or B divide into vectors",
            lambda c, p, _d: any(divisor % c.VECTOR_WIDTH == 0 for divisor in row_divisors(p)[:2]),
        ),
        Constraint("every thread loads from both operands", every_thread_loads),
        Constraint("no tile of half the size covers the axis", tile_suits_problem, is_thrift=True),
        Constraint("the blocks asked for fit a multiprocessor", blocks_reside),
        Constraint("registers suffice by estimate", registers_suffice),
    ),
    static_shared_bytes=shared_bytes_wpt,
    supports=lambda p: not p.is_half,
    takes_size=takes_rows_or_batch,
    is_batch_invariant=always,
)


def reads_c(p: Problem) -> bool:
    """Whether C counts as an input."""
    return not p.options["beta_zero"]


def flops(p: Problem) -> int:
    """2 m n k a matrix: a multiplication and an addition per product; alpha and beta are left out, as libraries do."""
    return 2 * p.shape["batch"] * p.shape["m"] * p.shape["n"] * p.shape["k"]


def bytes_moved(p: Problem) -> int:
    """Read A and B once, write C once, and read it once where beta counts; what a batch shares is read once."""
    m, n, k, batch = (p.shape[axis] for axis in ("m", "n", "k", "batch"))
    own_a, own_b = (batch if batch > 1 and p.shape[f"stride_{x}"] else 1 for x in "ab")
    of_c = batch * m * n * (2 if reads_c(p) else 1) * ITEM_BYTES[output_dtype(p)]
    return (own_a * m * k + own_b * k * n) * p.item_bytes + of_c


def summed_a(p: Problem) -> int:
    """The axis of A, from the end, that products are summed over."""
    return -2 if p.options["trans_a"] else -1


def summed_b(p: Problem) -> int:
    """The axis of B, from the end, that products are summed over."""
    return -1 if p.options["trans_b"] else -2


def streams_weights(p: Problem) -> bool:
    """Whether there are few rows of a half type, as in decoding: the weights of all layers do not fit the cache."""
    return p.is_half and p.shape["m"] <= MOST_ROWS and p.shape.get("batch", 1) == 1


def akin(p: Problem) -> Sequence[RelatedKernel]:
    """The product of operands as they lie, and a layer, whose B is transposed: layouts hardly change the ranking.

    TF32 and a packed operand have faster variants of their own.
    """
    if p.options["packed_b"] or p.options["accuracy"] == "tf32":
        return ()
    return (
        (RelatedKernel("linear"), RelatedKernel("gemm"))
        if p.options["trans_b"]
        else (RelatedKernel("gemm"), RelatedKernel("linear"))
    )


RANKS_COLD = {f"at most {MOST_ROWS} rows of a half type, without a batch": streams_weights}

KERNEL = Kernel(
    name="gemm",
    doc="C = alpha op(A) op(B) + beta C, row-major; op transposes where the option says so; also views, and batches.",
    folder=Path(__file__).parent,
    axes=("m", "n", "k"),
    launch_axes=("m", "batch"),
    largest_at_launch={"batch": 256},
    grid_axes=("batch",),
    row_axis="m",
    optional_axes=OPTIONAL_AXES,
    posed_by=posed_by,
    dtypes=("float32", "float64", *HALF),
    options=(
        Option("trans_a", (False, True), default=False, doc="A is stored as (k, m)"),
        Option("trans_b", (False, True), default=False, doc="B is stored as (n, k)"),
        Option("beta_zero", (False, True), default=True, doc="beta is 0 and C is not read"),
        ACCURACY,
        PACKED_B,
        OUTPUT,
    ),
    arguments=(
        # Powers of two beside 1: exact in every dtype, and a kernel that forgets one is found out.
        Scalar("alpha", lambda _p: 2.0, other=lambda _p: -0.75),
        Tensor("A", "input", partial(shape_of, "a"), summed=summed_a, strides=partial(strides_of, "a")),
        Tensor("B", "input", partial(shape_of, "b"), summed=summed_b, strides=partial(strides_of, "b")),
        Scalar("beta", lambda p: 0.5 if reads_c(p) else 0.0, other=lambda p: -1.25 if reads_c(p) else 0.0),
        Tensor(
            *("C", "inout", partial(shape_of, "c")),
            read_when=reads_c,
            strides=partial(strides_of, "c"),
            dtype=output_dtype,
        ),
    ),
    variants=(
        NAIVE,
        TILED,
        WPT,
        REGISTER,
        TENSOR3XTF32,
        TENSOR3XTF32_SLICED,
        TENSOR3XTF32_SM90,
        TENSOR3XFP16_SM90,
        TENSOR3XFP16_SMALL_SM90,
        TENSOR1XTF32,
        TENSOR1XTF32_SM90,
        TENSOR1XTF32_MULTICAST_SM90,
        TENSOR_FP64,
        TENSOR_HALF,
        TENSOR_HALF_SM90,
        TENSOR_HALF_PACKED_SM90,
        TENSOR_HALF_TURNED_SM90,
        STREAMED_HALF,
        STREAMED_HALF_SM90,
    ),
    packed="B",
    akin=akin,
    flops=flops,
    bytes_moved=bytes_moved,
    reference=gemm_reference,
    ranking_l2="warm",
    ranks_cold=RANKS_COLD,
    default_variant="wpt",
    example_shape={"m": 1024, "n": 1024, "k": 1024},
    product=ProductReference(terms),
)
