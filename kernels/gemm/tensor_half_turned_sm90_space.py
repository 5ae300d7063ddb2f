"""gemm's variant `tensor_half_turned_sm90`: its parameters, what they take, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.gemm.layout import counter_bytes, counters_fit, takes_rows
from tilewright.kernels.gemm.tensor_half_sm90_space import (
    ALIGNMENT,
    BLOCKS,
    GROUP_M,
    LINE_BYTES,
    MULTIPROCESSOR_BYTES,
    OTHER_BYTES,
    QUAD_BYTES,
    RESIDENT,
    STEP_K,
    blocks_are_multiprocessors,
    has_room,
    is_supported,
    neighbours_have_work,
    out_bytes,
    threads,
)
from tilewright.kernels.gemm.tensor_half_turned_sm90_time import (
    BLOCK_N,
    FEW_ROWS,
    FEWEST_STEPS,
    GRAIN_M,
    MOST_IN_CLUSTER,
    MOST_M,
    MOST_SUMS,
    SMALL_M,
    WIDTHS,
    Widths,
    at_once,
    cycles,
    fastest,
    start,
)
from tilewright.kernels.kernel import Launch, TensorMap, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice
from tilewright.kernels.variant import always, hopper_variant

PIECE_M = 16  # rows of C that a warpgroup stores at once
MOST_STAGES, FEWEST_STAGES = 16, 3
MOST_SUMS_BESIDE = 64  # where another block has half of the registers
NEAR = 1.25  # of the least time by estimate, what is worth a trial


def stage_bytes(c: Values, p: Problem) -> int:
    """Bytes of a step of both operands; a transposed A comes in boxes of 64 rows."""
    rows = ceil_div(c.TILE_M, BLOCK_N) * BLOCK_N if p.options["trans_a"] else c.TILE_M
    return (rows + c.TILE_N) * LINE_BYTES


def staging_bytes(c: Values, p: Problem) -> int:
    """Bytes in which warpgroups hold C on its way out: two buffers each, of as many pieces as fit beside the ring."""
    pieces = c.TILE_N // BLOCK_N // c.MULTIPLIERS * ceil_div(c.TILE_M, PIECE_M)
    left = room_bytes(c) - stages(c, p) * stage_bytes(c, p)
    return min(left // least_staging_bytes(c, p), pieces) * least_staging_bytes(c, p)


def least_staging_bytes(c: Values, p: Problem) -> int:
    """Bytes of two buffers of one piece for each warpgroup."""
    return c.MULTIPLIERS * 2 * PIECE_M * BLOCK_N * out_bytes(p)


def room_bytes(c: Values) -> int:
    """Shared memory of a block, for its ring and for what is on its way to memory."""
    return MULTIPROCESSOR_BYTES // c.RESIDENT - OTHER_BYTES


def stages(c: Values, p: Problem) -> int:
    """Buffers of a step in shared memory: as many as fit."""
    return min(MOST_STAGES, (room_bytes(c) - least_staging_bytes(c, p)) // stage_bytes(c, p))


def cluster(c: Values) -> int:
    """Blocks of a cluster."""
    return c.CLUSTER_M * c.CLUSTER_N * c.SPLIT_K


def cluster_tiles(c: Values, p: Problem) -> int:
    """How many tiles of a whole cluster cover every C of the batch."""
    of_matrix = ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER_M) * ceil_div(p.shape["n"], c.TILE_N * c.CLUSTER_N)
    return p.shape["batch"] * of_matrix


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid: each tile's parts, or as many as take the tiles in as few turns as all that run at once."""
    if c.SPLIT_K * c.SPLIT_FAR > 1:
        return cluster_tiles(c, p) * c.SPLIT_FAR * cluster(c)
    turns = ceil_div(cluster_tiles(c, p), c.BLOCKS * c.RESIDENT // cluster(c))
    return ceil_div(cluster_tiles(c, p), turns) * cluster(c)


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x."""
    shared_bytes = stages(c, p) * stage_bytes(c, p) + staging_bytes(c, p) + ALIGNMENT
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes, overlaps=True)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of two barriers a stage, and of a word that tells the last block."""
    return 16 * stages(c, p) + (16 if c.SPLIT_FAR > 1 else 0)


def counters(c: Values, p: Problem) -> int:
    """Counters of the workspace, one for each tile of several clusters."""
    return cluster_tiles(c, p) * cluster(c)


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of counters, and of the sums of every block that has a part of a tile."""
    if c.SPLIT_FAR == 1:
        return 0
    sums = counters(c, p) * c.SPLIT_FAR * c.TILE_M * c.TILE_N // 4 * QUAD_BYTES
    return counter_bytes(counters(c, p), p) + sums


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether counters have room for all tiles."""
    return c.SPLIT_FAR == 1 or counters_fit(counters(c, p))


def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of A and B by steps, and of C by the piece that is stored at once."""
    lines_a = STEP_K if p.options["trans_a"] else c.TILE_M
    lines_b = c.TILE_N if p.options["trans_b"] else STEP_K
    rows = PIECE_M if c.TILE_M % PIECE_M == 0 and c.SPLIT_K == 1 else GRAIN_M
    return (
        TensorMap("A", (1, lines_a, STEP_K)),
        TensorMap("B", (1, lines_b, STEP_K)),
        TensorMap("C", (1, rows, LINE_BYTES // out_bytes(p))),
    )


def block_holds_tile(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether each warpgroup has whole blocks of 64 columns, and registers for their sums."""
    if c.TILE_N % (BLOCK_N * c.MULTIPLIERS) or (p.options["trans_a"] and c.TILE_M % BLOCK_N):
        return False
    sums = c.TILE_N // BLOCK_N // c.MULTIPLIERS * c.TILE_M // 2
    if sums > MOST_SUMS[c.MULTIPLIERS]:
        return False
    return c.RESIDENT == 1 or (c.MULTIPLIERS == 1 and sums <= MOST_SUMS_BESIDE)


def stages_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads run ahead of products, and a split tile's sums fit into the ring."""
    held = stages(c, p)
    return held >= FEWEST_STAGES and (c.SPLIT_K == 1 or held * stage_bytes(c, p) >= c.TILE_M * c.TILE_N * 4)


def rows_are_shared_out(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile covers the rows with as many tiles; few rows are worth small tiles."""
    m = p.shape["m"]
    if c.TILE_M < SMALL_M and m > FEW_ROWS:
        return False
    if p.options["trans_a"] and c.TILE_M % BLOCK_N == 0:
        return m > c.TILE_M - BLOCK_N
    tiles = ceil_div(m, c.TILE_M)
    return ceil_div(ceil_div(m, tiles), GRAIN_M) * GRAIN_M == c.TILE_M


def cluster_is_of_use(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a cluster's blocks have tiles side by side."""
    rows, columns = ceil_div(p.shape["m"], c.TILE_M), ceil_div(p.shape["n"], c.TILE_N)
    return (c.CLUSTER_M == 1 or rows >= c.CLUSTER_M) and (c.CLUSTER_N == 1 or columns >= c.CLUSTER_N)


def portions(c: Values) -> int:
    """Blocks that have a tile together, a part of k each."""
    return c.SPLIT_K * c.SPLIT_FAR


def is_split_one_way(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether blocks add up a tile in a cluster or by the workspace, and each has a step."""
    return 1 in (c.SPLIT_K, c.SPLIT_FAR) and portions(c) <= ceil_div(p.shape["k"], STEP_K)


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether parts have some steps, and all blocks run at once."""
    if portions(c) == 1:
        return True
    enough_steps = ceil_div(p.shape["k"], STEP_K) >= FEWEST_STEPS * portions(c)
    return enough_steps and blocks(c, p) <= at_once(cluster(c), d) * c.RESIDENT


def group_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are row tiles to group otherwise than by the default."""
    rows = ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER_M)
    return GROUP_M.default == c.GROUP_M or rows > min(c.GROUP_M, GROUP_M.default)


def is_near_fastest(c: Values, p: Problem, d: Limits, widths: Widths = WIDTHS) -> bool:
    """Whether the estimate is little above the fastest configuration's: estimates are that good."""
    return cycles(c, p, d) <= NEAR * fastest(p, d, widths)[0]


TENSOR_HALF_TURNED_SM90 = hopper_variant(
    name="tensor_half_turned_sm90",
    doc="bfloat16 and float16 on Hopper with the product turned: tiles suit any number of rows, clusters share loads.",
    source="tensor_half_turned_sm90.cu",
    launch=launch,
    parameters=(
        BLOCKS,
        choice("TILE_M", *range(GRAIN_M, MOST_M + 1, GRAIN_M), default=64, doc="rows of C that a block computes"),
        choice("TILE_N", 64, 128, 192, 256, default=128, doc="columns of C that a block computes"),
        choice("MULTIPLIERS", 1, 2, 3, default=2, doc="warpgroups of a block that multiply, which share rows of A"),
        RESIDENT,
        choice("CLUSTER_M", 1, 2, 4, doc="blocks with tiles one below the other that share columns of B"),
        choice("CLUSTER_N", 1, 2, 4, doc="blocks with tiles side by side that share rows of A"),
        choice("SPLIT_K", 1, 2, 3, 4, 6, 8, doc="blocks of a cluster that share a tile"),
        choice("SPLIT_FAR", 1, 2, 3, 4, 6, 8, doc="clusters that share tiles by the workspace"),
        GROUP_M,
    ),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors, is_thrift=True),
        Constraint("warpgroups hold the tile's sums", block_holds_tile),
        Constraint("a cluster has at most 8 blocks", lambda c, _p, _d: cluster(c) <= MOST_IN_CLUSTER),
        Constraint("no smaller tile covers the rows as well", rows_are_shared_out, is_thrift=True),
        Constraint(
            "no smaller tile covers the columns", lambda c, p, _d: p.shape["n"] > c.TILE_N - BLOCK_N, is_thrift=True
        ),
        Constraint("stages fit shared memory", stages_suffice),
        Constraint("a cluster's blocks have tiles to share operands", cluster_is_of_use, is_thrift=True),
        Constraint("two blocks of a multiprocessor have work", neighbours_have_work, is_thrift=True),
        Constraint("blocks add up a tile in one way", is_split_one_way),
        Constraint("a split gives more blocks work", split_is_of_use, is_thrift=True),
        Constraint("by estimate it takes little longer than the fastest", is_near_fastest, is_thrift=True),
        Constraint("groups of row tiles differ", group_matters, is_thrift=True),
    ),
    start=start,
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    is_sound_at_launch=is_sound_at_launch,
    takes_size=takes_rows,
    is_batch_invariant=always,
    tensor_maps=tensor_maps,
    supports=is_supported,
    has_room=has_room,
)
