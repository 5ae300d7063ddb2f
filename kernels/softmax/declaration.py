"""softmax: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant
from tilewright.kernels.norm.kernel import VECTOR_FITS, VECTOR_WIDTH
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.softmax.reference import softmax_reference
from tilewright.kernels.space import Constraint, Values, powers_of_two
from tilewright.kernels.variant import always, rows_at_launch

HELD_ELEMENTS = 32  # of a row, by one lane: in float64 they take 64 registers
OTHER_REGISTERS = 32  # addresses, indices, largest and sum beside the numbers held; sm_90, NVRTC 13.0: 16 to 30


def rows_of_block(c: Values) -> int:
    """Rows that a block of `warp` takes."""
    return 32 * c.WARPS // c.LANES


def held(c: Values, p: Problem) -> int:
    """Elements of a row that a lane of `warp` holds."""
    step = c.LANES * c.VECTOR_WIDTH
    return -(-p.shape["n"] // step) * c.VECTOR_WIDTH


def launch_warp(c: Values, p: Problem) -> Launch:
    """A launch with LANES lanes for each row and 32 * WARPS threads a block."""
    return Launch((-(-p.shape["m"] // rows_of_block(c)), 1, 1), (32 * c.WARPS, 1, 1))


def threads_held(c: Values) -> int:
    """Threads of a block of `held`."""
    return int(c.THREADS_PER_ROW * c.ROWS)


def launch_held(c: Values, p: Problem) -> Launch:
    """A launch of blocks with ROWS rows each."""
    return Launch((-(-p.shape["m"] // c.ROWS), 1, 1), (threads_held(c), 1, 1))


def launch_block(c: Values, p: Problem) -> Launch:
    """A launch of one block for each row."""
    return Launch((p.shape["m"], 1, 1), (c.BLOCK, 1, 1))


def shared_bytes_block(c: Values, p: Problem) -> int:
    """Bytes of a maximum and a sum for each warp."""
    return 2 * (c.BLOCK // 32) * p.sum_bytes


def threads_hold(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread's part of a row fits its registers, and half the threads would need several accesses."""
    step = c.THREADS_PER_ROW * c.VECTOR_WIDTH
    numbers = -(-p.shape["n"] // step) * c.VECTOR_WIDTH
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // threads_held(c))
    fits = numbers <= HELD_ELEMENTS and numbers * p.sum_bytes // 4 + OTHER_REGISTERS <= available
    return fits and p.shape["n"] > step // 2


def lanes_work(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half the lanes would not get the row in one access."""
    return c.LANES == 1 or p.shape["n"] > c.LANES // 2 * c.VECTOR_WIDTH


def row_is_held(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a lane's part of the row fits its registers, by estimate."""
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // (32 * c.WARPS))
    numbers = held(c, p)
    return numbers <= HELD_ELEMENTS and numbers * p.sum_bytes // 4 + OTHER_REGISTERS <= available


def rows_exist(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many warps a block would not cover all rows."""
    return c.WARPS == 1 or rows_of_block(c) // 2 < p.shape["m"]


def columns_last(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a row has work for all threads and all unrolled steps; one warp and one step are always allowed."""
    n, step = p.shape["n"], c.BLOCK * c.VECTOR_WIDTH
    return (c.BLOCK == 32 or step // 2 < n) and (c.UNROLL == 1 or step * c.UNROLL // 2 < n)


BLOCK_PARAMETERS = (
    powers_of_two("BLOCK", 32, 1024, default=256, doc="threads of a block"),
    VECTOR_WIDTH,
    powers_of_two("UNROLL", 1, 8, default=1, doc="steps along a row whose loads are in flight together"),
)
BLOCK_CONSTRAINTS = (VECTOR_FITS, Constraint("every thread and unrolled step has columns", columns_last))

WARP = Variant(
    name="warp",
    doc="A warp or a part of one holds a row in registers: one read of X, no barrier; rows of up to 1024.",
    source="warp.cu",
    launch=launch_warp,
    parameters=(
        powers_of_two("WARPS", 1, 32, default=4, doc="warps of a block"),
        powers_of_two("LANES", 1, 32, default=32, doc="lanes that share a row"),
        VECTOR_WIDTH,
    ),
    constraints=(
        VECTOR_FITS,
        Constraint("half the lanes would not do in one access", lanes_work),
        Constraint("the row fits the lanes' registers", row_is_held),
        Constraint("no block of half as many warps covers the rows", rows_exist, is_thrift=True),
    ),
    supports=lambda p: p.shape["n"] <= 32 * HELD_ELEMENTS,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

HELD = Variant(
    name="held",
    doc="Several warps hold a row in registers: one read of X, two barriers; rows of 1025 to 32768.",
    source="held.cu",
    launch=launch_held,
    parameters=(
        powers_of_two("THREADS_PER_ROW", 64, 1024, default=256, doc="threads that share a row"),
        powers_of_two("ROWS", 1, 8, default=1, doc="rows of a block"),
        VECTOR_WIDTH,
    ),
    constraints=(
        VECTOR_FITS,
        Constraint("the row fits the threads' registers, and needs them", threads_hold),
        Constraint(
            "no block of half as many rows covers them",
            lambda c, p, _d: c.ROWS == 1 or p.shape["m"] > c.ROWS // 2,
            is_thrift=True,
        ),
    ),
    static_shared_bytes=lambda c, p: 2 * p.sum_bytes * threads_held(c) // 32,
    supports=lambda p: 32 * HELD_ELEMENTS < p.shape["n"] <= 1024 * HELD_ELEMENTS,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

BLOCK = Variant(
    name="block",
    doc="A block a row, three passes: largest, sum, probabilities.",
    source="block.cu",
    launch=launch_block,
    parameters=BLOCK_PARAMETERS,
    constraints=BLOCK_CONSTRAINTS,
    static_shared_bytes=shared_bytes_block,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

ONLINE = Variant(
    name="online",
    doc="A block a row, two passes: largest and sum in one, then the probabilities.",
    source="online.cu",
    launch=launch_block,
    parameters=BLOCK_PARAMETERS,
    constraints=BLOCK_CONSTRAINTS,
    static_shared_bytes=shared_bytes_block,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)


def flops(p: Problem) -> int:
    """5 m n: a comparison, subtraction, exponential, addition and division an element, each counted as one.

    Work that a variant does twice counts once.
    """
    return 5 * p.shape["m"] * p.shape["n"]


def bytes_moved(p: Problem) -> int:
    """Read X once, write Y once."""
    return 2 * p.shape["m"] * p.shape["n"] * p.item_bytes


KERNEL = Kernel(
    name="softmax",
    doc="y = exp(x - max) / sum of exp(x - max) over each row of X, (m, n) row-major.",
    folder=Path(__file__).parent,
    axes=("m", "n"),
    launch_axes=("m",),
    row_axis="m",
    dtypes=("float32", "float64", *HALF),
    options=(),
    arguments=(
        Tensor("X", "input", lambda p: (p.shape["m"], p.shape["n"]), normalised=True),
        Tensor("Y", "output", lambda p: (p.shape["m"], p.shape["n"])),
    ),
    variants=(WARP, HELD, BLOCK, ONLINE),
    flops=flops,
    bytes_moved=bytes_moved,
    reference=softmax_reference,
    ranking_l2="warm",  # a last layer has just written X, which lies in the L2 cache where it fits
    default_variant="block",
    example_shape={"m": 4096, "n": 1000},
)
