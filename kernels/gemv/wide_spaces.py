"""gemv's variants `split` and `columns`: their parameters, workspaces, and which configurations are worth a trial."""

from __future__ import annotations

import math

from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, powers_of_two
from tilewright.kernels.variant import SHARED_COUNTER_BYTES, always, rows_at_launch

WARP = 32
SMALLEST_SPLIT_BLOCK, SMALLEST_COLUMNS_BLOCK = 4 * WARP, 2 * WARP
LOAD_BYTES = 16  # the widest load of a thread
MAX_BYTES_IN_FLIGHT = 128  # of a thread: with half the threads of a multiprocessor, 128 KiB of it
OTHER_REGISTERS = (
    20  # addresses, counters and edges beside the numbers held; sm_90, NVRTC 13: 20 to 40, a few of them spilled
)
BLOCKS_PER_MULTIPROCESSOR = 32  # more than can be resident: the hardware levels the ends of such a launch by itself


def rows_lie_apart(p: Problem) -> bool:
    """Whether op(A) is stored row after row: as it is, and also where it has one row or one column."""
    return not p.options["trans_a"] or (p.shape["m"] == 1 and not p.at_launch) or p.shape["n"] == 1


def workspace_bytes(c: Values, p: Problem, groups: int, outputs: int) -> int:
    """Bytes of a counter for each group of SPLIT blocks, and of each block's sums of so many outputs (split.cuh)."""
    if c.SPLIT == 1:
        return 0
    counters = SHARED_COUNTER_BYTES if p.at_launch else ceil_div(4 * groups, 16) * 16
    return counters + groups * c.SPLIT * outputs * p.sum_bytes


def with_arrival(sums: int, c: Values, p: Problem) -> int:
    """Bytes of so many sums, and of the padded word that tells a block that it is the last."""
    if c.SPLIT == 1:
        return sums * p.sum_bytes
    return (sums + 1) * p.sum_bytes if sums else 4


def split_is_of_use(blocks: int, c: Values, d: Limits) -> bool:
    """Whether half as many blocks would leave a multiprocessor idle places."""
    return c.SPLIT == 1 or blocks // 2 < BLOCKS_PER_MULTIPROCESSOR * d.multiprocessors


def registers_suffice(numbers: int, threads: int, p: Problem, d: Limits) -> bool:
    """Whether so many numbers fit beside a thread's other registers, by estimate."""
    available = min(d.registers_per_multiprocessor // threads, d.max_registers_per_thread)
    return numbers * p.item_bytes // 4 + OTHER_REGISTERS <= available


# split: teams of threads walk along rows.


def teams(c: Values) -> int:
    """The number of teams of a block; 1 where not even one fits, which `team_fits` refuses."""
    return max(1, c.BLOCK // c.THREADS_PER_ROW)


def stride(c: Values, p: Problem) -> int:
    """Rows from one of a team's to its next, which starts at the same place within a vector and is no other team's."""
    aligned = min(c.VECTOR_WIDTH, LOAD_BYTES // p.item_bytes)
    period = aligned // math.gcd(p.shape["n"], aligned)
    return max(teams(c), period) if c.ROWS > 1 else teams(c)


def row_blocks(c: Values, p: Problem) -> int:
    """Blocks that cover the rows once."""
    return ceil_div(p.shape["m"], c.ROWS * stride(c, p)) * (stride(c, p) // teams(c))


def launch_split(c: Values, p: Problem) -> Launch:
    """A launch of SPLIT blocks for each group of rows."""
    return Launch((row_blocks(c, p) * c.SPLIT, 1, 1), (c.BLOCK, 1, 1))


def split_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of a sum for each warp and row where a team has several warps, and of the last block's word."""
    sums = c.ROWS * c.BLOCK // WARP if c.THREADS_PER_ROW > WARP else 0
    return with_arrival(sums, c, p)


def split_workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of the workspace for the rows of every block; 0 where SPLIT is 1."""
    return workspace_bytes(c, p, row_blocks(c, p), c.ROWS) if c.SPLIT > 1 else 0


def team_fits(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a team is at most a block."""
    return c.THREADS_PER_ROW <= c.BLOCK


def split_vector_suits(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads are whole 16 bytes, or single elements for rows that are short or mostly start inside one."""
    if c.VECTOR_WIDTH * p.item_bytes == LOAD_BYTES:
        return p.shape["n"] >= c.VECTOR_WIDTH
    return c.VECTOR_WIDTH == 1 and (p.shape["n"] * p.item_bytes % LOAD_BYTES != 0 or p.shape["n"] < 4 * WARP)


def split_registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread can hold loaded vectors of every row and of x, sums and edges."""
    return registers_suffice(
        (c.ROWS + 1) * c.UNROLL * c.VECTOR_WIDTH + 2 * c.ROWS * p.sum_bytes // p.item_bytes, c.BLOCK, p, d
    )


def row_lasts(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many threads, steps or parts would not take a row at once."""
    taken = c.THREADS_PER_ROW * c.UNROLL * c.SPLIT
    return taken == 1 or taken * c.VECTOR_WIDTH < 2 * p.shape["n"]


def team_reads_lines(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a team is a warp at least, or its row is so short that the lanes of several teams read whole lines."""
    return c.THREADS_PER_ROW >= WARP or p.shape["n"] <= 4 * c.THREADS_PER_ROW * c.VECTOR_WIDTH * c.UNROLL


def rows_last(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether every row of the first team exists, and half as many teams would not do, or none is smaller."""
    m = p.shape["m"]
    return (c.ROWS - 1) * stride(c, p) < m and (teams(c) == 1 or teams(c) < 2 * m or c.BLOCK == SMALLEST_SPLIT_BLOCK)


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a row that is split has a team alone, and counters have room, whatever the rows."""
    return c.SPLIT == 1 or (teams(c) == 1 and 4 * row_blocks(c, p) <= SHARED_COUNTER_BYTES)


SPLIT = Variant(
    name="split",
    doc="Teams of any size, several rows each; few and long rows split over several blocks.",
    source="split.cu",
    launch=launch_split,
    parameters=(
        powers_of_two("BLOCK", SMALLEST_SPLIT_BLOCK, 1024, default=256, doc="threads of a block"),
        powers_of_two("THREADS_PER_ROW", 1, 1024, default=256, doc="threads of a team, which walk along its rows"),
        powers_of_two("ROWS", 1, 4, default=1, doc="rows of a team, which share what is read of x"),
        powers_of_two("VECTOR_WIDTH", 1, 8, default=4, doc="elements in one load of A"),
        powers_of_two("UNROLL", 1, 8, default=4, doc="vectors of each row that a thread has in flight"),
        powers_of_two("SPLIT", 1, 256, default=1, doc="blocks that share a row"),
    ),
    constraints=(
        Constraint("a team fits a block", team_fits),
        Constraint("a load is 16 bytes, or an element where rows are not aligned", split_vector_suits),
        Constraint(
            "at most 128 bytes of a thread are in flight",
            lambda c, p, _d: c.ROWS * c.UNROLL * c.VECTOR_WIDTH * p.item_bytes <= MAX_BYTES_IN_FLIGHT,
        ),
        Constraint("no half of threads, steps and parts takes the row", row_lasts),
        Constraint("a team reads whole lines", team_reads_lines),
        Constraint("no half of the rows covers them", rows_last, is_thrift=True),
        Constraint(
            "splitting rows serves the device",
            lambda c, p, d: c.SPLIT == 1 or (teams(c) == 1 and split_is_of_use(row_blocks(c, p) * c.SPLIT, c, d)),
            is_thrift=True,
        ),
        Constraint("registers suffice by estimate", split_registers_suffice),
    ),
    static_shared_bytes=split_shared_bytes,
    workspace_bytes=split_workspace_bytes,
    supports=rows_lie_apart,
    takes_size=rows_at_launch,
    is_sound_at_launch=is_sound_at_launch,
)


# columns: transposed A, threads own outputs.


def columns_threads(c: Values) -> int:
    """Threads of a block."""
    return c.COLUMN_THREADS * c.SLICES


def column_blocks(c: Values, p: Problem) -> int:
    """Blocks that cover the outputs once."""
    return ceil_div(p.shape["m"], c.COLUMN_THREADS * c.VECTOR_WIDTH)


def launch_columns(c: Values, p: Problem) -> Launch:
    """A launch of SPLIT blocks for each group of outputs."""
    return Launch((column_blocks(c, p) * c.SPLIT, 1, 1), (columns_threads(c), 1, 1))


def columns_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the sums of slices that shuffles leave, and of the last block's word."""
    sums = max(1, c.SLICES * min(c.COLUMN_THREADS, WARP) // WARP) * c.COLUMN_THREADS * c.VECTOR_WIDTH
    return with_arrival(sums, c, p)


def columns_workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of the workspace for the outputs of every block; 0 where SPLIT is 1."""
    return workspace_bytes(c, p, column_blocks(c, p), c.COLUMN_THREADS * c.VECTOR_WIDTH)


def columns_vector_suits(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads are whole 16 bytes where rows divide into them or the launch tells, else single elements."""
    aligned = p.at_launch or p.shape["m"] * p.item_bytes % LOAD_BYTES == 0
    return (LOAD_BYTES // p.item_bytes if aligned else 1) == c.VECTOR_WIDTH


def columns_in_flight(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread has few enough loads in flight to gain from each, and registers for them."""
    numbers = (c.VECTOR_WIDTH + 1) * c.UNROLL + c.VECTOR_WIDTH * p.sum_bytes // p.item_bytes
    return c.UNROLL * c.VECTOR_WIDTH * p.item_bytes <= MAX_BYTES_IN_FLIGHT and registers_suffice(
        numbers, columns_threads(c), p, d
    )


def terms_last(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many slices, steps or parts would not take all terms at once; two warps a block are always in."""
    slices = c.SLICES if columns_threads(c) > SMALLEST_COLUMNS_BLOCK else 1
    taken = slices * c.UNROLL * c.SPLIT
    return taken == 1 or taken < 2 * p.shape["n"]


def columns_are_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether counters have room for all blocks of outputs."""
    return c.SPLIT == 1 or 4 * column_blocks(c, p) <= SHARED_COUNTER_BYTES


COLUMNS = Variant(
    name="columns",
    doc="For transposed A: threads own neighbouring outputs, slices and blocks split the terms.",
    source="columns.cu",
    launch=launch_columns,
    parameters=(
        powers_of_two("COLUMN_THREADS", 1, 1024, default=32, doc="threads side by side along m"),
        powers_of_two("SLICES", 1, 1024, default=8, doc="such teams of a block, which share the terms"),
        powers_of_two("VECTOR_WIDTH", 1, 8, default=4, doc="outputs of a thread, elements in one load of A"),
        powers_of_two("UNROLL", 1, 16, default=4, doc="rows of A that a thread has in flight"),
        powers_of_two("SPLIT", 1, 256, default=1, doc="blocks that share an output"),
    ),
    constraints=(
        Constraint(
            "a block has two warps at least",
            lambda c, _p, d: SMALLEST_COLUMNS_BLOCK <= columns_threads(c) <= d.max_threads_per_block,
        ),
        Constraint("a load is 16 bytes where rows are aligned", columns_vector_suits),
        Constraint("at most 128 bytes of a thread are in flight", columns_in_flight),
        Constraint(
            "no half of the width covers the outputs",
            lambda c, p, _d: c.COLUMN_THREADS == 1 or 2 * p.shape["m"] > c.COLUMN_THREADS * c.VECTOR_WIDTH,
            is_thrift=True,
        ),
        Constraint(
            "a warp reads whole lines",
            lambda c, p, _d: c.COLUMN_THREADS >= WARP or p.shape["m"] <= c.COLUMN_THREADS * c.VECTOR_WIDTH,
            is_thrift=True,
        ),
        Constraint("no half of slices, steps and parts takes the terms", terms_last),
        Constraint(
            "splitting terms serves the device",
            lambda c, p, d: split_is_of_use(column_blocks(c, p) * c.SPLIT, c, d),
            is_thrift=True,
        ),
    ),
    static_shared_bytes=columns_shared_bytes,
    workspace_bytes=columns_workspace_bytes,
    supports=lambda p: bool(p.options["trans_a"]),
    takes_size=rows_at_launch,
    is_sound_at_launch=columns_are_sound_at_launch,
    is_batch_invariant=always,
)
