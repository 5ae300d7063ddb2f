"""gemm's variant `register`: its parameters, what they take of a multiprocessor, and which are worth a trial."""

from __future__ import annotations

import math

from tilewright.kernels.gemm.layout import counter_bytes, counters_fit, row_divisors, takes_rows_or_batch
from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

OTHER_REGISTERS = 32  # addresses and counters beside the numbers held; sm_90, NVRTC 13.0: 17 to 32
VECTOR_BYTES = 16  # the widest access of one thread (CUDA C++ Programming Guide, "Device Memory Accesses")
BANK_BYTES = 128  # of all banks of shared memory together
SMALLEST_TILE_M, SMALLEST_TILE_N = 32, 64
SMALLEST_STEP = 8
FEWEST_STAGES = 2
UNROLLED_PRODUCTS = 1024  # of one thread in a step: 16 KiB of instructions; longer steps were no faster (H200)
MOST_COPIES = 96  # of one thread in a step: more are no use, and each is code three times over
MOST_BLOCKS_OF_CLUSTER = 8  # what every device with clusters has (CUDA C++ Programming Guide, "Thread Block Clusters")
RESIDENT_THREADS = 256  # of a multiprocessor, each with all the sums that its registers hold
SPLIT_THREADS = 400  # of a multiprocessor: where so many are there, k is not split further (H200)
FEWEST_ROUNDS = 4  # through the ring of buffers where k is split; the best of random trials had 8 or more (H200)
FULLNESS = 0.92  # of the places for blocks, where all run at once: the shares on offer are not much finer
WHOLE_SHARE = 128
SHARES = (1, 2, 4, *range(8, 64, 4), *range(64, 144, 8), 144, 160, 176, 192, 224)
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver, since compute capability 8.0 (CUDA guide, 16.7)
FEWEST_THREADS = 64  # of a multiprocessor, for half of its schedulers


def tile_m(c: Values) -> int:
    """Rows of C that a block computes."""
    return c.WARPS_M * c.LANES_M * c.WPT_M


def tile_n(c: Values) -> int:
    """Columns of C that a block computes."""
    return c.WARPS_N * (32 // c.LANES_M) * c.WPT_N


def threads(c: Values) -> int:
    """Threads of a block."""
    return c.WARPS_M * c.WARPS_N * 32


def steps(c: Values, p: Problem) -> int:
    """The number of steps along k for one tile."""
    return ceil_div(p.shape["k"], c.TILE_K)


def crosses(c: Values) -> bool:
    """Whether blocks cross from tile to tile."""
    return WHOLE_SHARE % c.SHARE_K != 0


def walked(c: Values, p: Problem) -> int:
    """The number of steps of one block, where blocks go on from tile to tile."""
    return ceil_div(steps(c, p) * c.SHARE_K, WHOLE_SHARE)


def tile_count(c: Values, p: Problem) -> int:
    """The number of tiles that cover C, for one matrix of a batch."""
    return ceil_div(p.shape["m"], tile_m(c)) * ceil_div(p.shape["n"], tile_n(c))


def split_k(c: Values) -> int:
    """The number of blocks for each tile, where no block goes on to another tile."""
    return WHOLE_SHARE // c.SHARE_K


def parts(c: Values, p: Problem) -> int:
    """How many parts of a tile the workspace holds at most; 1 where it holds none."""
    if crosses(c):
        return (steps(c, p) + walked(c, p) - 2) // walked(c, p) + 1
    return split_k(c) // cluster(c)


def blocks(c: Values, p: Problem) -> int:
    """The number of blocks for one matrix: the grid along x."""
    if crosses(c):
        return ceil_div(tile_count(c, p) * steps(c, p), walked(c, p))
    return tile_count(c, p) * split_k(c)


def all_blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid."""
    return p.shape["batch"] * blocks(c, p)


def cluster(c: Values) -> int:
    """Blocks of a cluster, which add up their tiles in shared memory."""
    return min(split_k(c), MOST_BLOCKS_OF_CLUSTER) if c.BY_CLUSTER and not crosses(c) else 1


def turned(p: Problem) -> tuple[bool, bool]:
    """Whether A and B lie along k in memory, so that they are turned on the way to shared memory."""
    return not p.options["trans_a"], bool(p.options["trans_b"])


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of STAGES tiles of both operands, with gaps where one is turned; with clusters at least a tile of C."""
    quad = VECTOR_BYTES // p.item_bytes
    gaps = max(c.TILE_K, BANK_BYTES // p.item_bytes) if c.HELD else c.TILE_K * quad
    elements = c.STAGES * (c.TILE_K * (tile_m(c) + tile_n(c)) + gaps * sum(turned(p)))
    if c.BY_CLUSTER:
        elements = max(elements, tile_m(c) * tile_n(c))
    return elements * p.item_bytes


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the number of the block that comes last, padded to where the rest may start; 0 without a workspace."""
    return VECTOR_BYTES if parts(c, p) > 1 else 0


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each share of each tile, and of every part's sums, as split_tile.cuh lays them out."""
    if parts(c, p) == 1:
        return 0
    shares = counters(c, p)
    share_quads = ceil_div(c.WPT_M * c.WPT_N * p.item_bytes // VECTOR_BYTES, cluster(c)) * threads(c)
    return counter_bytes(shares, p) + shares * parts(c, p) * share_quads * VECTOR_BYTES


def counters(c: Values, p: Problem) -> int:
    """Counters of the workspace, one for each share of each tile."""
    return p.shape["batch"] * tile_count(c, p) * cluster(c)


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether the counters have room and blocks can number all steps, however many rows there are."""
    return steps_are_countable(c, p) and (parts(c, p) == 1 or counters_fit(counters(c, p)))


def steps_are_countable(c: Values, p: Problem) -> bool:
    """Whether 32 bits can number all steps of all tiles, and those that a block begins after the last."""
    return tile_count(c, p) * steps(c, p) + walked(c, p) < 2**32


def copies(c: Values, p: Problem) -> tuple[int, int]:
    """The copies that a thread starts a step for both operands, and the 16-byte quads that it holds instead."""
    quad = VECTOR_BYTES // p.item_bytes
    count = held = 0
    for tile, divisor, is_turned in zip((tile_m(c), tile_n(c)), row_divisors(p), turned(p), strict=False):
        along = c.TILE_K if is_turned else tile // math.gcd(divisor, quad)
        if is_turned and c.HELD:
            along //= quad
        lanes = math.gcd(along, 16 if is_turned else threads(c))
        parts_of_thread = along // lanes * ceil_div(tile if is_turned else c.TILE_K, threads(c) // lanes)
        if is_turned and c.HELD:
            held += parts_of_thread
        else:
            count += parts_of_thread
    return count, held


def registers(c: Values, p: Problem) -> int:
    """An estimate of a thread's registers: sums, shares of two k, and what it holds of the next step."""
    numbers = c.WPT_M * c.WPT_N + 2 * (c.WPT_M + c.WPT_N)
    return numbers * p.item_bytes // 4 + 4 * copies(c, p)[1] + OTHER_REGISTERS


def launch(c: Values, p: Problem) -> Launch:
    """A launch of a matrix's blocks along x, and the batch along y."""
    return Launch((blocks(c, p), p.shape["batch"], 1), (threads(c), 1, 1), shared_bytes(c, p))


def holding_is_possible(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether an operand is turned and its lines divide into quads, or nothing travels through registers by quads."""
    quad = VECTOR_BYTES // p.item_bytes
    along_k = [divisor for divisor, is_turned in zip(row_divisors(p), turned(p), strict=False) if is_turned]
    return not c.HELD or (bool(along_k) and all(divisor % quad == 0 for divisor in along_k))


def block_is_of_use(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a block has at most eight warps: more do better as more blocks, which do not wait for one another."""
    return c.WARPS_M * c.WARPS_N <= 8


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether the estimate fits a thread and a block."""
    return registers(c, p) <= min(d.max_registers_per_thread, d.registers_per_multiprocessor // threads(c))


def step_is_unrolled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a step's products stay within the cache of instructions, and its copies are few."""
    products = c.TILE_K * c.WPT_M * c.WPT_N
    return products <= UNROLLED_PRODUCTS and copies(c, p)[0] <= MOST_COPIES


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    return (
        (tile_m(c) <= SMALLEST_TILE_M or tile_m(c) // 2 < p.shape["m"])
        and (tile_n(c) <= SMALLEST_TILE_N or tile_n(c) // 2 < p.shape["n"])
        and (c.TILE_K == SMALLEST_STEP or p.shape["k"] > c.TILE_K // 2)
    )


def threads_hold_enough(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread has the sums that fall to it when the device is full, or as many as registers admit."""
    share = p.shape["batch"] * p.shape["m"] * p.shape["n"] // (d.multiprocessors * RESIDENT_THREADS)
    return min(share, 256 // p.item_bytes // 4 * 4) <= c.WPT_M * c.WPT_N


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are a few warps for each multiprocessor, or tiles are small already."""
    enough = all_blocks(c, p) * threads(c) >= d.multiprocessors * FEWEST_THREADS
    return enough or tile_m(c) * tile_n(c) <= SMALLEST_TILE_M * SMALLEST_TILE_N


def resident_blocks(c: Values, p: Problem, d: Limits) -> int:
    """Blocks that a multiprocessor holds at a time, by the estimate of registers; these come in eights."""
    by_registers = d.registers_per_multiprocessor // (ceil_div(registers(c, p), 8) * 8 * threads(c))
    taken_bytes = shared_bytes(c, p) + static_shared_bytes(c, p) + RESERVED_SHARED_BYTES
    by_shared = d.shared_bytes_per_multiprocessor // taken_bytes
    return min(d.max_blocks_per_multiprocessor, d.max_threads_per_multiprocessor // threads(c), by_registers, by_shared)


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a tile's blocks have some steps each, and half as many would leave the device short of threads."""
    if crosses(c) or split_k(c) == 1:
        return True
    enough = all_blocks(c, p) // 2 * threads(c) >= SPLIT_THREADS * d.multiprocessors
    return steps(c, p) >= FEWEST_ROUNDS * split_k(c) * c.STAGES and not enough


def crossing_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether blocks that cross tiles run at once, evenly, for some steps each, and can number all steps."""
    if not crosses(c):
        return True
    each = walked(c, p)
    if each < FEWEST_ROUNDS * c.STAGES or each == ceil_div(steps(c, p) * (c.SHARE_K - 1), WHOLE_SHARE):
        return False
    layers = ceil_div(all_blocks(c, p), d.multiprocessors)
    evenly = all_blocks(c, p) >= FULLNESS * layers * d.multiprocessors
    return evenly and steps_are_countable(c, p) and layers <= resident_blocks(c, p, d)


def clusters_exist(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether the device has clusters and several blocks share a tile, where they are asked for."""
    return not c.BY_CLUSTER or (d.compute_capability >= (9, 0) and c.SHARE_K < WHOLE_SHARE and not crosses(c))


def order_matters(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether k is in one piece; where it is split, random trials with either order had equal medians (H200)."""
    return c.BY_COLUMNS == 1 or c.SHARE_K == WHOLE_SHARE


def stages_are_filled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are as many steps as buffers."""
    return c.STAGES == FEWEST_STAGES or steps(c, p) >= c.STAGES


REGISTER = Variant(
    name="register",
    doc="Warp tiles in registers, fed by a ring of asynchronous copies; blocks may share k (split-K, stream-K).",
    source="register.cu",
    launch=launch,
    parameters=(
        choice("TILE_K", 8, 16, 32, doc="length of a step along k"),
        powers_of_two("WARPS_M", 1, 4, default=4, doc="warps of a block along m"),
        powers_of_two("WARPS_N", 1, 4, default=2, doc="warps of a block along n"),
        powers_of_two("LANES_M", 2, 8, default=4, doc="threads of a warp along m; 32 / LANES_M are along n"),
        powers_of_two("WPT_M", 4, 16, default=8, doc="rows of C that a thread computes"),
        powers_of_two("WPT_N", 4, 16, default=8, doc="columns of C that a thread computes"),
        choice("STAGES", 2, 3, 4, default=4, doc="buffers in shared memory, one of which is computed on"),
        choice("SHARE_K", *SHARES, default=WHOLE_SHARE, doc="share of a tile's k that a block computes, in 128ths"),
        choice("BY_CLUSTER", 0, 1, doc="a tile's blocks add up in 0: a workspace, 1: clusters' shared memory first"),
        choice("HELD", 0, 1, doc="operands along k are transposed: 0 by element-wide copies, 1 through registers"),
        choice("LAVISH", 0, 1, doc="1: registers are not limited for more than one block a multiprocessor"),
        choice("BY_COLUMNS", 0, 1, default=1, doc="a thread's products of one k: 0 along rows, 1 along columns"),
    ),
    constraints=(
        Constraint("a block is at most eight warps", block_is_of_use, is_thrift=True),
        Constraint("16-byte quads lie along k where registers hold them", holding_is_possible),
        Constraint("no tile of half the size covers the axis", tile_suits_problem, is_thrift=True),
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint("a step's products and copies are not too many", step_is_unrolled),
        Constraint("threads hold enough sums", threads_hold_enough, is_thrift=True),
        Constraint("blocks fill the device", device_is_filled, is_thrift=True),
        Constraint("steps fill the stages", stages_are_filled, is_thrift=True),
        Constraint("splitting k serves the device", split_is_of_use, is_thrift=True),
        Constraint("blocks that cross tiles fill the device evenly", crossing_is_of_use, is_thrift=True),
        Constraint("products go by columns where k is split", order_matters, is_thrift=True),
        Constraint("there are clusters where blocks form some", clusters_exist),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    takes_size=takes_rows_or_batch,
    is_batch_invariant=lambda c, _p: not crosses(c),
    is_sound_at_launch=is_sound_at_launch,
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    supports=lambda p: not p.is_half,
)
