"""gemm's variant `tensor_half_sm90`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

from itertools import product

from tilewright.kernels.dtypes import HALF, ITEM_BYTES
from tilewright.kernels.gemm.layout import counter_bytes, counters_fit, fastest_tile, stored_rows, takes_rows
from tilewright.kernels.kernel import Launch, TensorMap, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Values, choice, powers_of_two
from tilewright.kernels.variant import always, hopper_variant

STEP_K = 64  # a line of 128 bytes, what the swizzle spans
LINE_BYTES = 128
PIECE_ROWS = 16  # of C, that a warp stores at once, 128 bytes of each
PIECES_HELD = 2  # of a warp, in shared memory
MOST_STAGES, MOST_COPIED_STAGES, FEWEST_STAGES = 8, 4, 2
SECTOR_BYTES = 32
MULTIPROCESSOR_BYTES = 228 * 1024  # of shared memory
OTHER_BYTES = 3 * 1024  # of a block: what the driver reserves, alignment and barriers
ALIGNMENT = 1024  # of the ring: eight lines
QUAD_BYTES = 16  # of four sums
LONGEST_STRIDE = 2**40  # bytes, of a tensor map
FEWEST_STEPS = 4  # of a part of a tile
MOST_ROW_BLOCKS = 2  # of 64 rows, of a warpgroup
MOST_SUMS = 256  # columns times blocks of 64 rows, of a warpgroup
MOST_SUMS_BESIDE = 128  # columns of one product where another block has half of the registers
SMALL_TILE = 64
MOST_TILE = 128 * 256  # what two warpgroups hold
LOAD_COST = 64  # of a row or column of a tile, in products: a step of 128 x 64 takes as long to load as to multiply
MOST_IN_CLUSTER = 2  # of four, an H200 runs 30 at once: 120 blocks


def out_bytes(p: Problem) -> int:
    """Bytes of an element of C."""
    return ITEM_BYTES["float32" if p.options["output"] == "float32" else p.dtype]


def cluster_k(c: Values) -> int:
    """How many of the SPLIT_K blocks of a tile are in one cluster."""
    return next(blocks for blocks in (8, 4, 2, 1) if c.SPLIT_K % blocks == 0)


def threads(c: Values) -> int:
    """Threads of a block: warpgroups that multiply, and one that loads."""
    return 128 * (c.MULTIPLIERS + 1)


def stage_bytes(c: Values) -> int:
    """A step of both operands."""
    return (c.TILE_M + c.TILE_N) * LINE_BYTES


def staging_bytes(c: Values) -> int:
    """Bytes of shared memory in which warps hold C on its way to memory."""
    return 0 if c.SPLIT_K > 1 else 4 * c.MULTIPLIERS * PIECES_HELD * PIECE_ROWS * LINE_BYTES


def is_copied(c: Values, p: Problem) -> bool:
    """Whether an operand comes by copies: its rows begin within sectors, and no other block has a use for it."""
    sharers = {"a": c.CLUSTER_N, "b": c.CLUSTER_M}
    return rows_are_aligned(p) and any(sharers[x] == 1 and splits_sectors(p, x) for x in "ab")


def splits_sectors(p: Problem, x: str) -> bool:
    """Whether rows of an operand, A or B, begin in the middle of sectors of 32 bytes."""
    steps = [p.shape[f"ld{x}"], *([p.shape[f"stride_{x}"]] if p.shape["batch"] > 1 else [])]
    return any(step * p.item_bytes % SECTOR_BYTES for step in steps)


def stages(c: Values, p: Problem) -> int:
    """Buffers of a step in shared memory: as many as fit, or fewer, so that copies have the L1 cache to wait in."""
    return stages_beside(staging_bytes(c), c, MOST_COPIED_STAGES if is_copied(c, p) else MOST_STAGES)


def stages_beside(staging: int, c: Values, most: int) -> int:
    """How many stages, at most `most`, fit beside `staging` bytes of buffers for storing C."""
    return min(most, (MULTIPROCESSOR_BYTES // c.RESIDENT - OTHER_BYTES - staging) // stage_bytes(c))


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the ring, of results on their way to memory, and of alignment."""
    return stages(c, p) * stage_bytes(c) + staging_bytes(c) + ALIGNMENT


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of barriers, and of a word for clusters that add up in the workspace."""
    return barrier_bytes(stages(c, p), c)


def barrier_bytes(count: int, c: Values) -> int:
    """Bytes of two barriers for each of `count` stages, and of a word if clusters add up in the workspace."""
    return ceil_div(16 * count + (4 if cluster_k(c) < c.SPLIT_K else 0), 16) * 16


def cluster_tiles(c: Values, p: Problem) -> int:
    """How many tiles of a whole cluster cover every C of the batch."""
    of_matrix = ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER_M) * ceil_div(p.shape["n"], c.TILE_N * c.CLUSTER_N)
    return p.shape["batch"] * of_matrix


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid: each tile's share, or as many as take the tiles in as few turns as all that run at once."""
    if c.SPLIT_K > 1:
        return cluster_tiles(c, p) * c.SPLIT_K
    cluster = c.CLUSTER_M * c.CLUSTER_N
    turns = ceil_div(cluster_tiles(c, p), c.BLOCKS * c.RESIDENT // cluster)
    return ceil_div(cluster_tiles(c, p), turns) * cluster


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x."""
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes(c, p), overlaps=True)


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each share of each tile, and of every cluster's sums (common/split_tile.cuh)."""
    inside = cluster_k(c)
    if inside == c.SPLIT_K:
        return 0
    shares, block_threads = counters(c, p), 128 * c.MULTIPLIERS
    share_quads = ceil_div(c.TILE_M * c.TILE_N // 4 // block_threads, inside)
    sums = shares * (c.SPLIT_K // inside) * share_quads * block_threads * QUAD_BYTES
    return counter_bytes(shares, p) + sums


def counters(c: Values, p: Problem) -> int:
    """Counters of the workspace, one for each share of each tile."""
    return cluster_tiles(c, p) * cluster_k(c)


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether clusters share a tile or an operand, as the source asks, and counters have room for all tiles."""
    one_kind = c.SPLIT_K == 1 or c.CLUSTER_M * c.CLUSTER_N == 1
    return one_kind and (cluster_k(c) == c.SPLIT_K or counters_fit(counters(c, p)))


def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of A and B, whose steps the blocks of a cluster load in shares, and of C, which a warp stores by pieces."""
    lines_a = (STEP_K if p.options["trans_a"] else c.TILE_M) // c.CLUSTER_N
    lines_b = (c.TILE_N if p.options["trans_b"] else STEP_K) // c.CLUSTER_M
    return (
        TensorMap("A", (1, lines_a, STEP_K)),
        TensorMap("B", (1, lines_b, STEP_K)),
        TensorMap("C", (1, PIECE_ROWS, LINE_BYTES // out_bytes(p))),
    )


def rows_are_aligned(p: Problem) -> bool:
    """Whether rows and matrices begin, and rows end, at multiples of 16 bytes.

    Boxes are stored by 16 bytes: behind a row of 262 numbers, which ends within them, two more were written.
    """
    item = {"a": p.item_bytes, "b": p.item_bytes, "c": out_bytes(p)}
    steps = [p.shape[f"ld{x}"] * item[x] for x in item]
    steps += [p.shape[f"stride_{x}"] * item[x] for x in item] if p.shape["batch"] > 1 else []
    ends = [stored_rows(x, p.shape, p.options)[1] * item[x] for x in item]
    return all(step % 16 == 0 and step < LONGEST_STRIDE for step in (*steps, *ends))


def is_supported(p: Problem) -> bool:
    """Whether the dtype has 16 bits, and tensor maps can describe the rows."""
    return p.dtype in HALF and rows_are_aligned(p)


def has_room(_p: Problem, d: Limits) -> bool:
    """Whether blocks may have the shared memory that these are made for."""
    return d.max_shared_bytes >= MULTIPROCESSOR_BYTES - 1024


def block_holds_tile(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether each warpgroup has whole blocks of 64 rows, and registers for their sums."""
    return holds_tile(c, MOST_SUMS)


def holds_tile(c: Values, most_sums: int) -> bool:
    """Whether warpgroups hold the tile, with at most `most_sums` columns times blocks of 64 rows."""
    if c.TILE_M % (64 * c.MULTIPLIERS):
        return False
    row_blocks = c.TILE_M // 64 // c.MULTIPLIERS
    if row_blocks > MOST_ROW_BLOCKS or row_blocks * c.TILE_N > most_sums:
        return False
    return c.RESIDENT == 1 or (c.MULTIPLIERS == 1 and c.TILE_N <= MOST_SUMS_BESIDE)


def stages_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads run ahead of products, and a split tile's sums fit into the ring."""
    return ring_suffices(stages(c, p), c)


def ring_suffices(count: int, c: Values) -> bool:
    """Whether a ring of `count` stages lets loads run ahead, and holds a split tile's sums."""
    return count >= FEWEST_STAGES and (c.SPLIT_K == 1 or count * stage_bytes(c) >= c.TILE_M * c.TILE_N * 4)


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile would cover an axis as well."""
    return is_smallest(c.TILE_M, TILE_M, p.shape["m"]) and is_smallest(c.TILE_N, TILE_N, p.shape["n"])


def is_smallest(tile: int, parameter: Parameter, extent: int) -> bool:
    """Whether no smaller value of the parameter covers `extent` rows or columns."""
    return extent > max((smaller for smaller in parameter.values if smaller < tile), default=0)


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The tile that takes the least time by estimate; in clusters of two where blocks stay for several long ones."""
    tile_m, tile_n = fastest_tile(p, d, product((64, 128), TILE_N.values), LOAD_COST)
    count = p.shape["batch"] * ceil_div(p.shape["m"], tile_m) * ceil_div(p.shape["n"], tile_n)
    is_long = ceil_div(p.shape["k"], STEP_K) >= MOST_STAGES and tile_m * tile_n == MOST_TILE
    shares = is_long and count > d.multiprocessors and p.shape["m"] > tile_m
    return {"TILE_M": tile_m, "TILE_N": tile_n, "MULTIPLIERS": tile_m // 64, "CLUSTER_M": 2 if shares else 1}


def cluster_is_of_use(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a cluster's blocks have tiles side by side, all of k, and are as few as multicasts pay for."""
    if c.CLUSTER_M * c.CLUSTER_N == 1:
        return True
    fills = p.shape["m"] > c.TILE_M * (c.CLUSTER_M - 1) and p.shape["n"] > c.TILE_N * (c.CLUSTER_N - 1)
    return fills and c.SPLIT_K == 1 and c.CLUSTER_M * c.CLUSTER_N <= MOST_IN_CLUSTER


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return min(BLOCKS.values, key=lambda count: abs(count - d.multiprocessors)) == c.BLOCKS


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether every other multiprocessor has work, or tiles are small already."""
    return 2 * blocks(c, p) >= d.multiprocessors or (
        c.TILE_N == SMALL_TILE == c.TILE_M and c.CLUSTER_M * c.CLUSTER_N == 1
    )


def neighbours_have_work(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are more blocks than multiprocessors where two share one."""
    return c.RESIDENT == 1 or blocks(c, p) > d.multiprocessors


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether parts have some steps, and a smaller split gives fewer multiprocessors work."""
    if c.SPLIT_K == 1:
        return True
    smaller = max(split for split in SPLIT_K.values if split < c.SPLIT_K)
    enough_steps = ceil_div(p.shape["k"], STEP_K) >= FEWEST_STEPS * c.SPLIT_K
    return enough_steps and cluster_tiles(c, p) * smaller < d.multiprocessors


def group_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are row tiles to group otherwise than by the default."""
    rows = ceil_div(p.shape["m"], c.TILE_M * c.CLUSTER_M)
    return GROUP_M.default == c.GROUP_M or rows > min(c.GROUP_M, GROUP_M.default)


BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="multiprocessors to fill: all of H20, H100 PCIe, H200")
TILE_M = powers_of_two("TILE_M", 64, 256, default=128, doc="rows of C that a block computes")
TILE_N = choice("TILE_N", 64, 128, 192, 256, default=256, doc="columns of C that a block computes")
MULTIPLIERS = choice("MULTIPLIERS", 1, 2, default=2, doc="warpgroups of a block that multiply")
RESIDENT = choice("RESIDENT", 1, 2, default=1, doc="blocks that a multiprocessor has at once")
CLUSTER_M = choice("CLUSTER_M", 1, 2, default=1, doc="blocks with tiles one below the other that share columns of B")
CLUSTER_N = choice("CLUSTER_N", 1, 2, default=1, doc="blocks with tiles side by side that share rows of A")
SPLIT_K = choice("SPLIT_K", 1, 2, 3, 4, 6, 8, 16, 32, 64, 128, default=1, doc="blocks that share a tile")
GROUP_M = choice("GROUP_M", 4, 8, 16, default=8, doc="rows of tiles that share columns of B in the L2 cache")

TENSOR_HALF_SM90 = hopper_variant(
    name="tensor_half_sm90",
    doc="bfloat16 and float16 on Hopper's wgmma: TMA loads by one warp, clusters that share operands.",
    source="tensor_half_sm90.cu",
    launch=launch,
    parameters=(BLOCKS, TILE_M, TILE_N, MULTIPLIERS, RESIDENT, CLUSTER_M, CLUSTER_N, SPLIT_K, GROUP_M),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors, is_thrift=True),
        Constraint("warpgroups hold the tile's sums", block_holds_tile),
        Constraint("stages fit shared memory", stages_suffice),
        Constraint("no smaller tile covers the axis", tile_suits_problem, is_thrift=True),
        Constraint("a cluster's blocks have tiles to share operands", cluster_is_of_use, is_thrift=True),
        Constraint("blocks fill the device", device_is_filled, is_thrift=True),
        Constraint("two blocks of a multiprocessor have work", neighbours_have_work, is_thrift=True),
        Constraint("a split gives more blocks work", split_is_of_use, is_thrift=True),
        Constraint("groups of row tiles differ", group_matters, is_thrift=True),
    ),
    start=start,
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    takes_size=takes_rows,
    is_batch_invariant=always,
    is_sound_at_launch=is_sound_at_launch,
    tensor_maps=tensor_maps,
    supports=is_supported,
    has_room=has_room,
)
