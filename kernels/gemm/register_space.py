"""gemm's variant `register`: its parameters, what they take of a multiprocessor, and which are worth a trial."""

from __future__ import annotations

import math

from tilewright.kernels.kernel import Launch, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

OTHER_REGISTERS = 32  # addresses and counters beside the numbers held; sm_90, NVRTC 13.0: 17 to 32
VECTOR_BYTES = 16  # the widest access of one thread (CUDA C++ Programming Guide, "Device Memory Accesses")
TRANSPOSED_LANES = 8  # threads along a row that is transposed on the way; the source says why
SMALLEST_TILE_M, SMALLEST_TILE_N = 32, 64
SMALLEST_STEP = 8
FEWEST_STAGES = 2
UNROLLED_PRODUCTS = 1024  # of one thread in a step: 16 KiB of instructions; longer steps were no faster (H200)
MOST_COPIES = 96  # of one thread in a step: more are no use, and each is code three times over
MOST_BLOCKS_OF_CLUSTER = 8  # what every device with clusters has (CUDA C++ Programming Guide, "Thread Block Clusters")
RESIDENT_THREADS = 256  # of a multiprocessor, each with all the sums that its registers hold
SPLIT_THREADS = 400  # of a multiprocessor: where so many are there, k is not split further (H200)
FEWEST_ROUNDS = 4  # through the ring of buffers where k is split; the best of random trials had 8 or more (H200)
FEWEST_THREADS = 64  # of a multiprocessor, for half of its schedulers


def tiles(extent: int, tile: int) -> int:
    """How many tiles cover the extent."""
    return -(-extent // tile)


def tile_m(c: Values) -> int:
    """Rows of C that a block computes."""
    return c.WARPS_M * c.LANES_M * c.WPT_M


def tile_n(c: Values) -> int:
    """Columns of C that a block computes."""
    return c.WARPS_N * (32 // c.LANES_M) * c.WPT_N


def threads(c: Values) -> int:
    """Threads of a block."""
    return c.WARPS_M * c.WARPS_N * 32


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid, the SPLIT_K of each tile included."""
    return tiles(p.shape["m"], tile_m(c)) * tiles(p.shape["n"], tile_n(c)) * c.SPLIT_K


def cluster(c: Values) -> int:
    """Blocks of a cluster, which add up their tiles in shared memory."""
    return math.gcd(c.SPLIT_K, MOST_BLOCKS_OF_CLUSTER) if c.BY_CLUSTER else 1


def shared_bytes(c: Values, p: Problem) -> int:
    """STAGES tiles of both operands, transposed ones padded by 16 bytes a row; with clusters at least a tile of C."""
    padding = 16 // p.item_bytes
    pitch_a = tile_m(c) + (0 if p.options["trans_a"] else padding)
    pitch_b = tile_n(c) + (padding if p.options["trans_b"] else 0)
    elements = c.STAGES * c.TILE_K * (pitch_a + pitch_b)
    if c.BY_CLUSTER:
        elements = max(elements, tile_m(c) * tile_n(c))
    return elements * p.item_bytes


def static_shared_bytes(c: Values, _p: Problem) -> int:
    """Who is the last to arrive, where the workspace is used, up to where the rest may start."""
    return VECTOR_BYTES if cluster(c) < c.SPLIT_K else 0


def workspace_bytes(c: Values, p: Problem) -> int:
    """A counter for each share of each tile, and that share of every cluster's sums; as split_tile.cuh lays it out."""
    if cluster(c) == c.SPLIT_K:
        return 0
    shares = blocks(c, p) // c.SPLIT_K * cluster(c)
    share_quads = tiles(c.WPT_M * c.WPT_N * p.item_bytes // VECTOR_BYTES, cluster(c)) * threads(c)
    return tiles(4 * shares, 16) * 16 + shares * (c.SPLIT_K // cluster(c)) * share_quads * VECTOR_BYTES


def registers(c: Values, p: Problem) -> int:
    """What a thread takes, by estimate: sums, and shares of two k."""
    numbers = c.WPT_M * c.WPT_N + 2 * (c.WPT_M + c.WPT_N)
    return numbers * p.item_bytes // 4 + OTHER_REGISTERS


def launch(c: Values, p: Problem) -> Launch:
    """SPLIT_K blocks a tile, all along x."""
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes(c, p))


def copies(c: Values, p: Problem) -> int:
    """Copies that a thread starts in a step, those of both operands together."""
    widest = VECTOR_BYTES // p.item_bytes
    sides = (
        (tile_m(c), p.shape["m"], not p.options["trans_a"]),
        (tile_n(c), p.shape["n"], bool(p.options["trans_b"])),
    )
    count = 0
    for tile, extent, transposed in sides:
        if transposed:
            along, lanes, lines = c.TILE_K, TRANSPOSED_LANES, tile
        else:
            along = tile // math.gcd(extent, widest)
            lanes, lines = math.gcd(along, threads(c)), c.TILE_K
        count += along // lanes * tiles(lines, threads(c) // lanes)
    return count


def block_is_of_use(c: Values, _p: Problem, _d: Limits) -> bool:
    """At most eight warps: more of them are better off as more blocks, which do not wait for one another."""
    return c.WARPS_M * c.WARPS_N <= 8


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether the estimate fits a thread and a block."""
    return registers(c, p) <= min(d.max_registers_per_thread, d.registers_per_multiprocessor // threads(c))


def step_is_unrolled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a step's products stay within the cache of instructions, and its copies are few."""
    products = c.TILE_K * c.WPT_M * c.WPT_N
    return products <= UNROLLED_PRODUCTS and copies(c, p) <= MOST_COPIES


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    return (
        (tile_m(c) <= SMALLEST_TILE_M or tile_m(c) // 2 < p.shape["m"])
        and (tile_n(c) <= SMALLEST_TILE_N or tile_n(c) // 2 < p.shape["n"])
        and (c.TILE_K == SMALLEST_STEP or p.shape["k"] > c.TILE_K // 2)
    )


def threads_hold_enough(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread has the sums that fall to it when the device is full, or registers are."""
    share = p.shape["m"] * p.shape["n"] // (d.multiprocessors * RESIDENT_THREADS)
    return min(share, 256 // p.item_bytes // 4 * 4) <= c.WPT_M * c.WPT_N


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are a few warps for each multiprocessor, or tiles are small already."""
    enough = blocks(c, p) * threads(c) >= d.multiprocessors * FEWEST_THREADS
    return enough or tile_m(c) * tile_n(c) <= SMALLEST_TILE_M * SMALLEST_TILE_N


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether each block has some steps, and half as many blocks would leave the device short of threads."""
    if c.SPLIT_K == 1:
        return True
    steps = tiles(p.shape["k"], c.TILE_K)
    enough = blocks(c, p) // 2 * threads(c) >= SPLIT_THREADS * d.multiprocessors
    return steps >= FEWEST_ROUNDS * c.SPLIT_K * c.STAGES and not enough


def clusters_exist(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether the device has clusters and the blocks of a tile divide into some, where they are asked for."""
    return not c.BY_CLUSTER or (d.compute_capability >= (9, 0) and c.SPLIT_K % 2 == 0)


def order_matters(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether k is in one piece; where it is split, random trials with either order had equal medians (H200)."""
    return c.BY_COLUMNS == 1 or c.SPLIT_K == 1


def stages_are_filled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are as many steps as buffers."""
    return c.STAGES == FEWEST_STAGES or tiles(p.shape["k"], c.TILE_K) >= c.STAGES


REGISTER = Variant(
    name="register",
    doc="Warp tiles in registers, fed by a ring of asynchronous copies; k split over blocks.",
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
        choice("SPLIT_K", 1, 2, 4, 6, 8, 16, 32, 64, 128, doc="blocks that share the k of a tile"),
        choice("BY_CLUSTER", 0, 1, doc="these blocks add up in a workspace, or first in the shared memory of clusters"),
        choice("BY_COLUMNS", 0, 1, default=1, doc="a thread's products of one k: 0 along rows, 1 along columns"),
    ),
    constraints=(
        Constraint("a block is at most eight warps", block_is_of_use),
        Constraint("no tile of half the size covers the axis", tile_suits_problem),
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint("a step's products and copies are not too many", step_is_unrolled),
        Constraint("threads hold enough sums", threads_hold_enough),
        Constraint("blocks fill the device", device_is_filled),
        Constraint("steps fill the stages", stages_are_filled),
        Constraint("splitting k serves the device", split_is_of_use),
        Constraint("products go by columns where k is split", order_matters),
        Constraint("there are clusters where blocks form some", clusters_exist),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
)
