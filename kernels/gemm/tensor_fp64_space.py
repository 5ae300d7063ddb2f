"""gemm's variant `tensor_fp64`: its parameters, what they take of a multiprocessor, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.gemm.layout import counter_bytes, counters_fit, takes_rows_or_batch
from tilewright.kernels.gemm.tensor_mma_space import (
    admitted_registers,
    cluster,
    clusters_exist,
    threads,
    tile_m,
    tile_n,
)
from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

REAL_BYTES = 8
PAIR = 2  # elements of one 16-byte access
SMALLEST_TILE = 16
OTHER_REGISTERS = 32  # addresses and counters, and one for each copy; where there are more, the compiler takes them
MOST_COPIES = 48  # of one thread in a step: each is code twice over
MOST_WARPS = 8  # of a block: more of them are better off as more blocks
RESIDENT_THREADS = 256  # of a multiprocessor, each with all the sums that it should have
MOST_NEEDED_SUMS = 16  # of a thread: with more the best warp tile is left to trials
SPLIT_THREADS = 256  # of a multiprocessor: where so many are there, k is not split further
FEWEST_ROUNDS = 1  # through the ring of buffers where k is split
FEWEST_THREADS = 64  # of a multiprocessor, for half of its schedulers
FULLNESS = 0.85
NOTHING_TO_SHARE = 0.97  # of BLOCKS: so many tiles, a block each, leave nothing to share out
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver, since compute capability 8.0 (CUDA guide, 16.7)
MULTIPROCESSORS = (56, 78, 108, 114, 132)  # A30, H20, A100, H100 PCIe, H200
MOST_TILES = 2**31  # that a block can number


def all_tiles(c: Values, p: Problem) -> int:
    """Tiles of all matrices of the batch."""
    return ceil_div(p.shape["m"], tile_m(c)) * ceil_div(p.shape["n"], tile_n(c)) * p.shape["batch"]


def steps(c: Values, p: Problem) -> int:
    """The number of steps along k for one tile."""
    return ceil_div(p.shape["k"], c.TILE_K)


def shared_tiles(c: Values, p: Problem) -> int:
    """Tiles that several blocks may have parts of."""
    count = all_tiles(c, p)
    if c.BLOCKS == 0:
        return count
    left = count % c.BLOCKS
    return left if left == 0 or count < c.BLOCKS else left + c.BLOCKS


def walked(c: Values, p: Problem) -> int:
    """The number of steps of one block along shared tiles."""
    return ceil_div(shared_tiles(c, p) * steps(c, p), c.BLOCKS)


def parts(c: Values, p: Problem) -> int:
    """How many parts of a tile the workspace holds at most; 1 where it holds none."""
    if c.BLOCKS == 0:
        return c.SPLIT_K // cluster(c)
    if shared_tiles(c, p) == 0:
        return 1
    return (steps(c, p) + walked(c, p) - 2) // walked(c, p) + 1


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid: those of BLOCKS that have work."""
    count = all_tiles(c, p)
    return min(c.BLOCKS, count * steps(c, p)) if c.BLOCKS else count * c.SPLIT_K


def shared_bytes(c: Values, _p: Problem) -> int:
    """Bytes of STAGES tiles of both operands; with clusters at least a tile of sums."""
    elements = c.STAGES * c.TILE_K * (tile_m(c) + tile_n(c))
    if c.BY_CLUSTER:
        elements = max(elements, tile_m(c) * tile_n(c))
    return elements * REAL_BYTES


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the number of the block that comes last, padded to where the rest may start; 0 without a workspace."""
    return 128 if parts(c, p) > 1 else 0


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each share of each shared tile, and of every part's sums (split_tile.cuh)."""
    if parts(c, p) == 1:
        return 0
    shares = shared_tiles(c, p) * cluster(c)
    share_pairs = ceil_div(sums(c) // PAIR, cluster(c)) * threads(c)
    return counter_bytes(shares, p) + shares * parts(c, p) * share_pairs * PAIR * REAL_BYTES


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x, those of all matrices of a batch."""
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes(c, p))


def sums(c: Values) -> int:
    """Sums that a thread holds."""
    return c.WARP_M * c.WARP_N // 32


def copied_at_once(matrix: str, line: int, p: Problem) -> int:
    """How many elements one copy of a matrix ("a" or "b") takes, with so many in a line."""
    return 1 if any(extent % PAIR for extent in (line, p.shape[f"ld{matrix}"], p.shape[f"stride_{matrix}"])) else PAIR


def copies(c: Values, p: Problem) -> int:
    """Copies that a thread starts in a step, those of both operands together."""
    line_a, line_b = p.shape["m" if p.options["trans_a"] else "k"], p.shape["k" if p.options["trans_b"] else "n"]
    sides = ((tile_m(c), copied_at_once("a", line_a, p)), (tile_n(c), copied_at_once("b", line_b, p)))
    return sum(ceil_div(tile * c.TILE_K // width, threads(c)) for tile, width in sides)


def registers(c: Values, p: Problem) -> int:
    """An estimate of the registers a thread needs: sums, the terms of one product or two, and what copies need."""
    terms = (c.WARP_M + c.WARP_N) * c.MMA_K // 32 * (1 + c.AHEAD)
    return 2 * (sums(c) + terms) + copies(c, p) + OTHER_REGISTERS


def supports(p: Problem) -> bool:
    """Whether the problem is float64, with any shape and layout."""
    return p.dtype == "float64"


def block_is_of_use(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether a block has at most eight warps: more do better as more blocks, which do not wait for one another."""
    return c.WARPS_M * c.WARPS_N <= MOST_WARPS


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether sums and terms fit a thread, also where MIN_BLOCKS asks the compiler for several blocks."""
    admitted = admitted_registers(c, d)
    asks = c.MIN_BLOCKS == 1 or admitted < d.max_registers_per_thread // 8 * 8
    return asks and registers(c, p) <= admitted


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    return (
        (tile_m(c) <= SMALLEST_TILE or tile_m(c) // 2 < p.shape["m"])
        and (tile_n(c) <= SMALLEST_TILE or tile_n(c) // 2 < p.shape["n"])
        and (c.TILE_K == 16 or p.shape["k"] > c.TILE_K // 2)
    )


def threads_hold_enough(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread has the sums that fall to it when the device is full, or enough of them."""
    share = p.shape["m"] * p.shape["n"] * p.shape["batch"] // (d.multiprocessors * RESIDENT_THREADS)
    return min(share, MOST_NEEDED_SUMS) <= sums(c)


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are a few warps for each multiprocessor, or tiles are small already."""
    enough = blocks(c, p) * threads(c) >= d.multiprocessors * FEWEST_THREADS
    return enough or tile_m(c) * tile_n(c) <= 4 * SMALLEST_TILE * SMALLEST_TILE


def stages_are_filled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are as many steps as buffers that are copied to ahead."""
    return c.STAGES == 2 or steps(c, p) >= c.STAGES - 1


def copies_are_few(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread starts at most MOST_COPIES copies a step."""
    return copies(c, p) <= MOST_COPIES


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether each block has some steps, and half as many blocks would leave the device short of threads.

    Also whether they are about a whole number for each multiprocessor, where they are more than one.
    """
    if c.SPLIT_K == 1:
        return True
    count = blocks(c, p)
    enough = count // 2 * threads(c) >= SPLIT_THREADS * d.multiprocessors
    full = count <= d.multiprocessors or count >= FULLNESS * ceil_div(count, d.multiprocessors) * d.multiprocessors
    return c.BLOCKS == 0 and steps(c, p) >= FEWEST_ROUNDS * c.SPLIT_K * c.STAGES and full and not enough


def sharing_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether `blocks_share_well` holds with the memory and registers of this variant's blocks."""
    return blocks_share_well(c, p, d, shared_bytes(c, p), registers(c, p))


def blocks_share_well(c: Values, p: Problem, d: Limits, ring_bytes: int, thread_registers: int) -> bool:
    """Whether BLOCKS are one or two a multiprocessor, run at once, and can number the steps that they share.

    Also whether they have several tiles each, so that copies of the next run ahead while one is finished, or too few.
    """
    if c.BLOCKS == 0:
        return True
    nearest = min(MULTIPROCESSORS, key=lambda count: abs(count - d.multiprocessors))
    resident = c.BLOCKS // nearest
    taken_bytes = ring_bytes + static_shared_bytes(c, p) + RESERVED_SHARED_BYTES
    fits = (
        c.BLOCKS % nearest == 0
        and resident * taken_bytes <= d.shared_bytes_per_multiprocessor
        and resident * threads(c) * ceil_div(thread_registers, 8) * 8 <= d.registers_per_multiprocessor
    )
    count, each = all_tiles(c, p), walked(c, p)
    some_steps = each == 0 or each >= FEWEST_ROUNDS * c.STAGES
    numbered = count < MOST_TILES and (c.BLOCKS + 1) * each < 2 * MOST_TILES
    return fits and some_steps and numbered and (count > c.BLOCKS or count < NOTHING_TO_SHARE * c.BLOCKS)


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether blocks keep to one tile, since sharing all tiles is compiled in, and counters have room."""
    return c.BLOCKS == 0 and (parts(c, p) == 1 or counters_fit(shared_tiles(c, p) * cluster(c)))


TENSOR_FP64 = Variant(
    name="tensor_fp64",
    doc="FP64 on tensor cores: warp tiles in registers, fed by a ring of asynchronous copies; blocks share tiles.",
    source="tensor_fp64.cu",
    launch=launch,
    parameters=(
        choice("TILE_K", 16, 32, doc="length of a step along k"),
        powers_of_two("WARPS_M", 1, 4, default=2, doc="warps of a block along m"),
        powers_of_two("WARPS_N", 1, 4, default=2, doc="warps of a block along n"),
        powers_of_two("WARP_M", 16, 64, default=32, doc="rows of C that a warp computes"),
        powers_of_two("WARP_N", 16, 64, default=32, doc="columns of C that a warp computes"),
        choice("MMA_K", 4, 8, default=4, doc="terms that a warp multiplies at a time"),
        choice("AHEAD", 0, 1, default=1, doc="registers of the next terms: 0: those just used, 1: others"),
        choice("STAGES", 2, 3, 4, 6, default=3, doc="buffers in shared memory, one of which is computed on"),
        choice("SPLIT_K", 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, doc="blocks that share the k of a tile"),
        choice("BY_CLUSTER", 0, 1, doc="a tile's blocks add up in 0: a workspace, 1: clusters' shared memory first"),
        choice(
            "BLOCKS",
            *sorted({0} | {each * count for each in (1, 2) for count in MULTIPROCESSORS}),
            doc="blocks that share all tiles evenly, as many as run at once; 0: one block a tile, or SPLIT_K blocks",
        ),
        choice("MIN_BLOCKS", 1, 2, 3, 4, doc="blocks that must fit a multiprocessor by registers"),
    ),
    constraints=(
        Constraint("a block is at most eight warps", block_is_of_use, is_thrift=True),
        Constraint(
            "one instruction multiplies MMA_K terms", lambda c, _p, d: c.MMA_K == 4 or d.compute_capability >= (9, 0)
        ),
        Constraint("registers suffice for the blocks asked for", registers_suffice),
        Constraint("no tile of half the size covers the axis", tile_suits_problem, is_thrift=True),
        Constraint("a step's copies are not too many", copies_are_few),
        Constraint("threads hold enough sums", threads_hold_enough, is_thrift=True),
        Constraint("blocks fill the device", device_is_filled, is_thrift=True),
        Constraint("steps fill the stages", stages_are_filled, is_thrift=True),
        Constraint("splitting k serves the device", split_is_of_use, is_thrift=True),
        Constraint("blocks that share tiles fill the device", sharing_is_of_use, is_thrift=True),
        Constraint("there are clusters where blocks form some", clusters_exist),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    takes_size=takes_rows_or_batch,
    is_batch_invariant=lambda c, _p: c.BLOCKS == 0,
    is_sound_at_launch=is_sound_at_launch,
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    supports=supports,
)
