"""gemv: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemv.reference import gemv_reference, terms
from tilewright.kernels.gemv.wide_spaces import COLUMNS, SPLIT, rows_lie_apart
from tilewright.kernels.kernel import Kernel, Launch, Option, Scalar, Tensor, Variant
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import ProductReference
from tilewright.kernels.space import Constraint, Values, powers_of_two
from tilewright.kernels.variant import always, rows_at_launch


def rows_to_blocks(p: Problem, rows_per_block: int, threads: int) -> Launch:
    """A launch of blocks along x over the rows."""
    return Launch((-(-p.shape["m"] // rows_per_block), 1, 1), (threads, 1, 1))


def launch_naive(c: Values, p: Problem) -> Launch:
    """A launch of one thread for each row."""
    return rows_to_blocks(p, c.BLOCK, c.BLOCK)


def launch_warp(c: Values, p: Problem) -> Launch:
    """A launch of one warp for ROWS_PER_WARP rows."""
    return rows_to_blocks(p, c.WARPS * c.ROWS_PER_WARP, 32 * c.WARPS)


def launch_block(c: Values, p: Problem) -> Launch:
    """A launch of one block for each row."""
    return rows_to_blocks(p, 1, c.BLOCK)


def launch_vectorized(c: Values, p: Problem) -> Launch:
    """A launch of WARPS_PER_ROW warps for each row, ROWS_PER_BLOCK rows a block."""
    return rows_to_blocks(p, c.ROWS_PER_BLOCK, 32 * c.WARPS_PER_ROW * c.ROWS_PER_BLOCK)


def rows_exist(rows_per_block: int, p: Problem) -> bool:
    """Whether half as many rows a block would not cover them all."""
    return rows_per_block == 1 or rows_per_block // 2 < p.shape["m"]


def columns_last(threads: int, elements: int, c: Values, p: Problem) -> bool:
    """Whether a row has work for all threads and all unrolled steps; one warp and one step are always allowed."""
    n = p.shape["n"]
    return (threads == 32 or threads * elements <= n) and (c.UNROLL == 1 or threads * elements * c.UNROLL <= n)


# A name says what is counted: the same reasons hold in every variant.
ROWS_EXIST = "no block of half as many rows covers them"
COLUMNS_LAST = "every thread and unrolled step has columns"

NAIVE = Variant(
    name="naive",
    starts_search=False,
    doc="A thread a row of op(A).",
    source="naive.cu",
    launch=launch_naive,
    parameters=(powers_of_two("BLOCK", 32, 1024, default=128, doc="rows, and threads, of a block"),),
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

WARP = Variant(
    name="warp",
    doc="A warp for one row or a few, coalesced, reduced by shuffles.",
    source="warp.cu",
    launch=launch_warp,
    parameters=(
        powers_of_two("WARPS", 1, 32, default=4, doc="warps of a block"),
        powers_of_two("ROWS_PER_WARP", 1, 4, default=1, doc="rows that share what a warp reads of x"),
        powers_of_two("UNROLL", 1, 8, default=4, doc="steps along a row whose loads are in flight together"),
    ),
    constraints=(
        Constraint(ROWS_EXIST, lambda c, p, _d: rows_exist(c.WARPS * c.ROWS_PER_WARP, p), is_thrift=True),
        Constraint(COLUMNS_LAST, lambda c, p, _d: columns_last(32, 1, c, p)),
    ),
    supports=rows_lie_apart,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

BLOCK = Variant(
    name="block",
    doc="A block a row, reduced by shuffles and shared memory.",
    source="block.cu",
    launch=launch_block,
    parameters=(
        powers_of_two("BLOCK", 32, 1024, default=256, doc="threads of a block"),
        powers_of_two("UNROLL", 1, 8, default=4, doc="steps along a row whose loads are in flight together"),
    ),
    constraints=(Constraint(COLUMNS_LAST, lambda c, p, _d: columns_last(c.BLOCK, 1, c, p)),),
    static_shared_bytes=lambda c, p: c.BLOCK // 32 * p.sum_bytes,
    supports=rows_lie_apart,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

VECTORIZED = Variant(
    name="vectorized",
    doc="Vector loads with several in flight; rows need not be aligned.",
    source="vectorized.cu",
    launch=launch_vectorized,
    parameters=(
        powers_of_two("VECTOR_WIDTH", 1, 8, default=4, doc="elements in one load of A"),
        powers_of_two("WARPS_PER_ROW", 1, 32, default=4, doc="warps that share a row"),
        powers_of_two("ROWS_PER_BLOCK", 1, 32, default=1, doc="rows of a block"),
        powers_of_two("UNROLL", 1, 8, default=4, doc="vectors of A that a thread has in flight"),
    ),
    constraints=(
        Constraint(ROWS_EXIST, lambda c, p, _d: rows_exist(c.ROWS_PER_BLOCK, p), is_thrift=True),
        Constraint(COLUMNS_LAST, lambda c, p, _d: columns_last(32 * c.WARPS_PER_ROW, c.VECTOR_WIDTH, c, p)),
        Constraint("eight elements in one load are of 2 bytes", lambda c, p, _d: c.VECTOR_WIDTH <= 4 or p.is_half),
    ),
    static_shared_bytes=lambda c, p: c.ROWS_PER_BLOCK * c.WARPS_PER_ROW * p.sum_bytes,
    supports=rows_lie_apart,
    takes_size=rows_at_launch,
)


def reads_y(p: Problem) -> bool:
    """Whether y counts as an input."""
    return not p.options["beta_zero"]


def stored_shape(p: Problem) -> tuple[int, ...]:
    """Rows and columns of A as it lies in memory."""
    m, n = p.shape["m"], p.shape["n"]
    return (n, m) if p.options["trans_a"] else (m, n)


def bytes_moved(p: Problem) -> int:
    """Read A and x once, write y once, and read it once where beta counts."""
    m, n = p.shape["m"], p.shape["n"]
    return (m * n + n + m * (2 if reads_y(p) else 1)) * p.item_bytes


KERNEL = Kernel(
    name="gemv",
    doc="y = alpha op(A) x + beta y, A row-major.",
    folder=Path(__file__).parent,
    axes=("m", "n"),
    launch_axes=("m",),
    row_axis="m",
    dtypes=("float32", "float64", *HALF),
    options=(
        Option("trans_a", (False, True), default=False, doc="A is stored as (n, m)"),
        Option("beta_zero", (False, True), default=True, doc="beta is 0 and y is not read"),
    ),
    arguments=(
        # Powers of two beside 1: exact in every dtype, and a kernel that forgets one is found out.
        Scalar("alpha", lambda _p: 2.0, other=lambda _p: -0.75),
        Tensor("A", "input", stored_shape, summed=lambda p: 0 if p.options["trans_a"] else 1),
        Tensor("x", "input", lambda p: (p.shape["n"],), summed=lambda _p: 0),
        Scalar("beta", lambda p: 0.5 if reads_y(p) else 0.0, other=lambda p: -1.25 if reads_y(p) else 0.0),
        Tensor("y", "inout", lambda p: (p.shape["m"],), read_when=reads_y),
    ),
    # What a gain is measured against where the default variant does not serve is the first that does.
    variants=(NAIVE, WARP, BLOCK, VECTORIZED, COLUMNS, SPLIT),
    flops=lambda p: 2 * p.shape["m"] * p.shape["n"],
    bytes_moved=bytes_moved,
    reference=gemv_reference,
    ranking_l2="cold",  # A is read once: what it costs to bring it from memory is the question
    default_variant="vectorized",
    example_shape={"m": 4096, "n": 4096},
    product=ProductReference(terms),
)
