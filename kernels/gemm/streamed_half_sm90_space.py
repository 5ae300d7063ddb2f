"""gemm's variant `streamed_half_sm90`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.gemm.tensor_half_sm90_space import (
    ALIGNMENT,
    LINE_BYTES,
    LONGEST_STRIDE,
    MULTIPROCESSOR_BYTES,
    OTHER_BYTES,
    STEP_K,
    has_room,
)
from tilewright.kernels.kernel import Launch, TensorMap, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice
from tilewright.kernels.variant import hopper_variant

MOST_ROWS = 64  # of A: with more, arithmetic counts too
BLOCK_COLUMNS = 64  # of B, in a product
MOST_COLUMNS = 256  # of a block; with twice as many, registers spill
THREADS = 128 + 32  # a warpgroup that multiplies, a warp that loads
FEWEST_STEPS = 4  # of a part of a tile
MOST_DEPTH = 32  # more than fit
REGISTERS, OTHER_REGISTERS = 65536, 56  # of a multiprocessor; of a thread, beside its sums


def rows(p: Problem) -> int:
    """Rows of A with zeros below them, MOST_ROWS at most: as many as a product has columns."""
    return next((count for count in (8, 16, 32) if count >= p.shape["m"]), MOST_ROWS)


def stage_bytes(c: Values, p: Problem) -> int:
    """A step of both operands."""
    return (c.TILE_N + rows(p)) * LINE_BYTES


def most_stages(c: Values, p: Problem) -> int:
    """Buffers of a step in shared memory: as many as fit, or as a block has steps."""
    fit = (MULTIPROCESSOR_BYTES // c.RESIDENT - OTHER_BYTES) // stage_bytes(c, p)
    return min(fit, max(ceil_div(steps(p), c.SPLIT_K), 2))


def stages(c: Values, p: Problem) -> int:
    """Stages of the ring that are used."""
    return min(most_stages(c, p), c.DEPTH)


def steps(p: Problem) -> int:
    """Steps of a whole tile."""
    return ceil_div(p.shape["k"], STEP_K)


def sums_bytes(c: Values, p: Problem) -> int:
    """Bytes of the ring that hold a block's sums at the end of a tile."""
    return rows(p) * (c.TILE_N + 4) * 4


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid: every tile's parts."""
    return p.shape["batch"] * ceil_div(p.shape["n"], c.TILE_N) * c.SPLIT_K


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x."""
    shared_bytes = stages(c, p) * stage_bytes(c, p) + ALIGNMENT
    return Launch((blocks(c, p), 1, 1), (THREADS, 1, 1), shared_bytes, overlaps=True)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the barriers, two for each stage."""
    return 16 * stages(c, p)


def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of A and B by steps."""
    lines_b = c.TILE_N if p.options["trans_b"] else STEP_K
    return (TensorMap("A", (1, rows(p), STEP_K)), TensorMap("B", (1, lines_b, STEP_K)))


def rows_are_aligned(p: Problem) -> bool:
    """Whether rows and matrices of A and B begin, and rows end, at multiples of 16 bytes, by which boxes are copied."""
    distances = [p.shape["lda"], p.shape["ldb"], *(stored_rows(x, p.shape, p.options)[1] for x in "ab")]
    distances += [p.shape["stride_a"], p.shape["stride_b"]] if p.shape["batch"] > 1 else []
    return all(distance % 8 == 0 and distance * p.item_bytes < LONGEST_STRIDE for distance in distances)


def is_supported(p: Problem) -> bool:
    """Whether there are few rows, of 16 bits and contiguous along k, that tensor maps can describe."""
    return p.dtype in HALF and p.shape["m"] <= MOST_ROWS and not p.options["trans_a"] and rows_are_aligned(p)


def ring_is_deep_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads run ahead of products, and a tile's sums fit into the ring."""
    held = stages(c, p)
    return held >= 2 and held * stage_bytes(c, p) >= sums_bytes(c, p)


def registers_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread can hold its sums, and the addresses of a step's products, beside other blocks."""
    sums = c.TILE_N // BLOCK_COLUMNS * rows(p) // 2
    return c.TILE_N <= MOST_COLUMNS and sums + OTHER_REGISTERS <= min(255, REGISTERS // (THREADS * c.RESIDENT))


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half the tile would not cover all columns, or it is small anyhow."""
    return c.TILE_N <= 2 * BLOCK_COLUMNS or p.shape["n"] > c.TILE_N // 2


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether parts have some steps, and all blocks run at once."""
    if c.SPLIT_K == 1:
        return True
    return steps(p) >= FEWEST_STEPS * c.SPLIT_K and blocks(c, p) <= c.RESIDENT * d.multiprocessors


def neighbours_have_work(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are enough blocks for the places on each multiprocessor."""
    return c.RESIDENT == 1 or blocks(c, p) > (c.RESIDENT - 1) * d.multiprocessors


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The start: a short ring, and two blocks for each multiprocessor, or, if blocks are few, two that share k."""
    count = p.shape["batch"] * ceil_div(p.shape["n"], BLOCK_COLUMNS)
    divides = 2 * count <= d.multiprocessors and steps(p) >= 2 * FEWEST_STEPS
    resident, split, depth = (2, 1, 4) if count > d.multiprocessors else (1, 2 if divides else 1, 8)
    values = {"TILE_N": BLOCK_COLUMNS, "RESIDENT": resident, "SPLIT_K": split, "WALK": resident - 1}
    bounded = most_stages(Values(values), p) > depth  # else a ring of all steps is no longer
    return values | {"DEPTH": depth if bounded else MOST_DEPTH}


STREAMED_HALF_SM90 = hopper_variant(
    name="streamed_half_sm90",
    doc="bfloat16 and float16 for few rows of A: B is read once, by TMA into a ring in shared memory, for wgmma.",
    source="streamed_half_sm90.cu",
    launch=launch,
    parameters=(
        choice("TILE_N", 64, 128, 256, doc="columns of C that a block computes"),
        choice("SPLIT_K", *range(1, 9), default=1, doc="blocks of a cluster, which share a tile"),
        choice("RESIDENT", 1, 2, 3, 4, default=1, doc="blocks that share a multiprocessor's shared memory"),
        choice("DEPTH", 4, 8, MOST_DEPTH, default=MOST_DEPTH, doc="steps that a block has in flight, at most"),
        choice("WALK", 0, 1, doc="tiles start along k: 0 at the first step, 1 each at another step"),
    ),
    constraints=(
        Constraint("stages fit shared memory", ring_is_deep_enough),
        Constraint(
            "a bound makes the ring shorter", lambda c, p, _d: c.DEPTH == MOST_DEPTH or most_stages(c, p) > c.DEPTH
        ),
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint("no tile of half the size covers the columns", tile_suits_problem),
        Constraint("a split gives more blocks work", split_is_of_use),
        Constraint("blocks of a multiprocessor have work", neighbours_have_work),
    ),
    static_shared_bytes=static_shared_bytes,
    tensor_maps=tensor_maps,
    supports=is_supported,
    has_room=has_room,
    start=start,
)
