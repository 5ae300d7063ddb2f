"""The variant `streamed`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.linear_quantized.reference import GROUP, MOST_ROWS, bits, groups, has_zeros
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, Values, choice
from tilewright.kernels.variant import always, rows_at_launch

FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8  # of W and of X, in a product of a warp
MOST_PARTS = 16  # of k, which are added up at once
RESERVED_BYTES = 1024  # of shared memory, by the driver, of every block
CLUSTERS_FROM = (9, 0)
MOST_UNDIVIDED = 2  # eights of rows of X, which are never divided
LARGE_X_BYTES, START_X_BYTES = 32 * 1024, 64 * 1024  # of a block
DIVIDES = (1, 2, 4)
ROUNDS = (*range(1, 9), 10, 12, 14, 16)
SPARE = 0.25  # of the rows that blocks cover, which may lie behind the last of W
STEP_REGISTERS, OTHER_REGISTERS = 32, 56  # of a thread: for a step's weights of one fragment, and beside sums


def steps(p: Problem) -> int:
    """Steps of k, of 128 each."""
    return p.shape["k"] // GROUP


def tile_rows(c: Values) -> int:
    """Rows of W of a tile."""
    return FRAGMENT_ROWS * c.ROWS * c.WARPS_N


def columns(c: Values, p: Problem) -> int:
    """Rows of X of a block in eights; where the launch tells their number, 64 rows."""
    rows = MOST_ROWS if p.at_launch else p.shape["m"]
    return ceil_div(ceil_div(rows, FRAGMENT_COLUMNS), c.DIVIDE)


def block_rows(c: Values, p: Problem) -> int:
    """Rows of X of a block."""
    return min(MOST_ROWS if p.at_launch else p.shape["m"], FRAGMENT_COLUMNS * columns(c, p))


def threads(c: Values) -> int:
    """Threads of a block."""
    return 32 * c.WARPS_K * c.WARPS_N


def blocks(c: Values, p: Problem) -> int:
    """Blocks along x, a multiple of the cluster's size."""
    return ceil_div(ceil_div(p.shape["n"], tile_rows(c)), c.ROUNDS) * c.SPLIT


def launch(c: Values, p: Problem) -> Launch:
    """A launch of clusters that take ROUNDS tiles each, blocks and warps sharing k; along y are parts of X's rows."""
    parts = ceil_div(p.shape["m"], block_rows(c, p)) if p.at_launch else c.DIVIDE
    return Launch((blocks(c, p), parts, 1), (threads(c), 1, 1), shared_bytes(c, p), overlaps=True)


def x_bytes(c: Values, p: Problem) -> int:
    """Bytes of a block's part of X in shared memory, with gaps."""
    fragments = columns(c, p)
    rows = block_rows(c, p) if fragments == 1 else FRAGMENT_COLUMNS * fragments
    gap = 2 if bits(p) == 4 else 4 * (rows % 2 == 0)
    return ceil_div(steps(p), c.SPLIT) * 4 * (4 * rows + gap) * 16


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of a block's part of X, the warps' rings, and their sums, which may take the rings' place."""
    rows = block_rows(c, p)
    own_rows = 4 * ceil_div(tile_rows(c) // 4, c.SPLIT)
    sums = c.WARPS_K * c.SPLIT * rows * (own_rows + 4) * 4
    rings = c.WARPS_K * c.WARPS_N * c.DEPTH * stage_bytes(c, p)
    return x_bytes(c, p) + (max(sums, rings) if c.ROUNDS * c.SPLIT == 1 else min(c.ROUNDS, 2) * sums + rings)


def stage_bytes(c: Values, p: Problem) -> int:
    """Bytes of a warp's stage: rows of W of UNROLL steps, and their scales, four bytes at least."""
    scales = (1 if groups(p) == 1 else c.UNROLL) * (2 if has_zeros(p) else 1)
    return FRAGMENT_ROWS * c.ROWS * (c.UNROLL * GROUP * bits(p) // 8 + max(4, 2 * scales))


def blocks_are_even(c: Values, p: Problem, d: Limits) -> bool:
    """Whether all blocks run at once, and multiprocessors have equal shares or at most one tile."""
    return shares_are_even(launch(c, p), tile_rows(c), c.ROUNDS, c.SPLIT * c.DIVIDE, p, d)


def shares_are_even(launch: Launch, rows: int, rounds: int, sharers: int, p: Problem, d: Limits) -> bool:
    """Whether shares are even with `sharers` blocks for a tile of `rows` rows of W and `rounds` tiles for a block."""
    of_each = ceil_div(launch.grid[0] * launch.grid[1], d.multiprocessors)
    if of_each == 1 and rounds == 1:
        return True
    room = d.shared_bytes_per_multiprocessor // (launch.shared_bytes + RESERVED_BYTES)
    covered = of_each * d.multiprocessors * rows * rounds
    fits = of_each <= min(room, d.max_threads_per_multiprocessor // launch.threads)
    return fits and (1 - SPARE) * covered <= p.shape["n"] * sharers


def has_room(p: Problem, d: Limits) -> bool:
    """Whether a block that has as little of X as any can keep that in shared memory."""
    least = {"WARPS_K": 1, "WARPS_N": 4, "ROWS": 1, "UNROLL": 1, "DEPTH": 2, "ROUNDS": 1}
    split = 8 if d.compute_capability >= CLUSTERS_FROM else 1
    divide = 4 if p.at_launch else min(4, ceil_div(p.shape["m"], FRAGMENT_COLUMNS))
    c = Configuration.of("streamed", least | {"SPLIT": split, "DIVIDE": divide})
    return shared_bytes(c.values, p) <= d.max_shared_bytes


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread can hold its sums and the weights of a step, by estimate."""
    held = c.ROWS * (STEP_REGISTERS + 4 * columns(c, p)) + OTHER_REGISTERS
    return held <= min(d.max_registers_per_thread, d.registers_per_multiprocessor // threads(c))


def stages_exist(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a warp's steps make whole stages, as many as are under way; one step, and two stages, always do."""
    parts = c.SPLIT * c.WARPS_K
    own = ceil_div(steps(p), parts) * c.ROUNDS
    return (c.UNROLL == 1 or steps(p) % (parts * c.UNROLL) == 0) and (c.DEPTH == 2 or own >= c.DEPTH * c.UNROLL)


def rows_are_many(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether X has rows for all its parts: many if it is divided, several if fragments share its terms.

    Where their number comes with the launch: whether blocks of half as many would not do, or are not to be had.
    """
    if p.at_launch:
        return DIVIDES[-1] == c.DIVIDE or p.shape["m"] > block_rows(c, p) // 2
    columns_of_all = ceil_div(p.shape["m"], FRAGMENT_COLUMNS)
    is_divided = columns_of_all > MOST_UNDIVIDED and p.shape["m"] > FRAGMENT_COLUMNS * columns(c, p) * (c.DIVIDE - 1)
    return (c.DIVIDE == 1 or is_divided) and (c.ROWS == 1 or columns_of_all > 1)


def x_is_large(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many blocks would each hold much of X: a cluster costs some microseconds."""
    rows = block_rows(c, p) * c.DIVIDE if p.at_launch else p.shape["m"]
    return c.SPLIT == 1 or ceil_div(steps(p), c.SPLIT // 2) * 2 * GROUP * rows > LARGE_X_BYTES * c.DIVIDE


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The start: about 64 KB of X a block, one tile a multiprocessor if 16 warps suffice, eight warps if fewer do."""
    divide = next((d for d in reversed(DIVIDES) if p.shape["m"] <= MOST_ROWS // d), 1) if p.at_launch else 1
    x = steps(p) * 2 * GROUP * (MOST_ROWS // divide if p.at_launch else p.shape["m"])
    split = next((s for s in (1, 2, 4) if x <= s * START_X_BYTES), 8) if d.compute_capability >= CLUSTERS_FROM else 1
    share = ceil_div(ceil_div(p.shape["n"], FRAGMENT_ROWS) * split, d.multiprocessors)
    warps = next((w for w in (1, 2, 4, 8, 14, 16) if w >= share), 8)
    parts = next((w for w in (8, 4, 2) if w * warps <= 8 and steps(p) % (w * split) == 0), 1)
    unroll = 2 if bits(p) == 4 and steps(p) % (2 * parts * split) == 0 else 1
    rounds = 1 if share <= 16 else next((r for r in ROUNDS if r * warps >= share), ROUNDS[-1])
    own = {"DIVIDE": divide} if p.at_launch else {}
    return own | {"WARPS_K": parts, "WARPS_N": warps, "UNROLL": unroll, "DEPTH": 3, "SPLIT": split, "ROUNDS": rounds}


STREAMED = Variant(
    name="streamed",
    doc="Tensor cores: X stays in shared memory, each warp loads W through its own ring, multiprocessors share evenly.",
    source="streamed.cu",
    launch=launch,
    parameters=(
        choice("WARPS_K", 1, 2, 4, 8, default=8, doc="warps of a block that share k"),
        choice("WARPS_N", *range(1, 9), 10, 12, 14, 16, default=1, doc="warps of a block side by side"),
        choice("ROWS", 1, 2, doc="groups of 16 rows of W that a warp computes at a time"),
        choice("UNROLL", 1, 2, 4, doc="steps of 128 k in a pipeline stage"),
        choice("DEPTH", 2, 3, 4, doc="pipeline stages of a warp: one is multiplied while the others are loaded"),
        choice("SPLIT", 1, 2, 4, 8, doc="blocks of a cluster, which share k"),
        choice("DIVIDE", *DIVIDES, doc="parts into which rows of X are divided; each part reads W"),
        choice("ROUNDS", *ROUNDS, doc="tiles that a block computes, one after the other"),
    ),
    constraints=(
        Constraint("a block has 4 to 16 warps", lambda c, _p, _d: 4 <= c.WARPS_K * c.WARPS_N <= 16),
        Constraint("parts of k are added up at once", lambda c, _p, _d: c.WARPS_K * c.SPLIT <= MOST_PARTS),
        Constraint("clusters exist", lambda c, _p, d: c.SPLIT == 1 or d.compute_capability >= CLUSTERS_FROM),
        Constraint("every warp has steps", lambda c, p, _d: max(4, steps(p)) >= c.SPLIT * c.WARPS_K),
        Constraint("every stage under way has steps", stages_exist),
        Constraint("X has enough rows", rows_are_many, is_thrift=True),
        Constraint("what is split is large", x_is_large, is_thrift=True),
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint("blocks share the device evenly", blocks_are_even, is_thrift=True),
    ),
    takes_size=rows_at_launch,
    is_batch_invariant=always,
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    has_room=has_room,
    start=start,
)
