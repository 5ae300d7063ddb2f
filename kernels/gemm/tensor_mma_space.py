"""gemm's variants `tensor3xtf32` and `tensor1xtf32` by mma.sync: their parameters, costs, and what is worth a trial."""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.kernels.gemm.layout import counter_bytes, counters_fit, stored_rows, takes_rows_or_batch
from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Parameter, Values, choice, powers_of_two

REAL_BYTES = 4
QUAD = 4  # elements of one 16-byte access
FEWEST_TERMS = 24  # 2 sqrt(k), the bound, then covers twice what mma/split_tf32.cuh says that a product may be off
FEWEST_TERMS_BF16 = 4356  # covers once what a product may be off with the small products in BF16
SMALLEST_TILE = 32
SMALLEST_STEP = 16
FEWEST_STAGES = 2
MOST_COPIES = 96  # of one thread in a step: each is code three times over
MOST_BLOCKS_OF_CLUSTER = 8  # what every device with clusters has (CUDA C++ Programming Guide, "Thread Block Clusters")
# By PROMOTE_K and the warp's tile; of 383 random configurations none spilled more than 236 bytes (NVRTC 13.0, sm_90).
FEWEST_REGISTERS = {
    16: {
        (16, 16): 64,
        (16, 32): 80,
        (16, 64): 136,
        (32, 16): 88,
        (32, 32): 128,
        (32, 64): 248,
        (64, 16): 112,
        (64, 32): 168,
        (64, 64): 248,
    },
    32: {(16, 16): 96, (16, 32): 128, (16, 64): 168, (32, 16): 128, (32, 32): 168, (64, 16): 152, (64, 32): 248},
}
RESIDENT_THREADS = 256  # of a multiprocessor, each with all the sums that it should have
MOST_NEEDED_SUMS = 32  # of a thread: with more the best warp tile is left to trials
FEWEST_ROUNDS = 1  # through the ring of buffers where k is split; the best at 256 cubed has 1.3 (H200)
SMALL_BLOCKS = 6  # of a multiprocessor, of 128 threads or less
SPLIT_THREADS = 256  # of a multiprocessor: where so many are there, k is not split further
FULLNESS = 0.85
FEWEST_THREADS = 64  # of a multiprocessor, for half of its schedulers


def tile_m(c: Values) -> int:
    """Rows of C that a block computes."""
    return c.WARPS_M * c.WARP_M


def tile_n(c: Values) -> int:
    """Columns of C that a block computes."""
    return c.WARPS_N * c.WARP_N


def slices(c: Values) -> int:
    """The groups of warps that each have the whole tile and share a step's terms."""
    return c.get("SLICES", 1)


def threads(c: Values) -> int:
    """Threads of a block."""
    return c.WARPS_M * c.WARPS_N * slices(c) * 32


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid, the SPLIT_K of each tile and all matrices of the batch included."""
    return blocks_a_matrix(c, p) * p.shape["batch"]


def blocks_a_matrix(c: Values, p: Problem) -> int:
    """Blocks for one matrix of the batch."""
    return ceil_div(p.shape["m"], tile_m(c)) * ceil_div(p.shape["n"], tile_n(c)) * c.SPLIT_K


def cluster(c: Values) -> int:
    """Blocks of a cluster, which add up their tiles in shared memory."""
    return math.gcd(c.SPLIT_K, MOST_BLOCKS_OF_CLUSTER) if c.BY_CLUSTER else 1


def pushes(c: Values) -> bool:
    """Whether the blocks of a cluster send each other sums: in `tensor3xtf32_sliced`."""
    return cluster(c) > 1 and c.get("RESIDENT", 0) > 0


def pushed_quads(c: Values) -> int:
    """Room for the quads of sums that a block of a cluster receives."""
    shares = cluster(c) * slices(c)
    return ceil_div(c.WARP_M * c.WARP_N // 128, shares) * shares * threads(c)


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of STAGES tiles of both operands, fewer for few steps; with clusters or slices at least their sums."""
    steps = ceil_div(ceil_div(p.shape["k"], c.TILE_K), c.SPLIT_K)
    elements = min(c.STAGES, steps) * c.TILE_K * (tile_m(c) + tile_n(c))
    if c.BY_CLUSTER or slices(c) > 1:
        elements = max(elements, tile_m(c) * tile_n(c) * slices(c))
    if pushes(c):
        elements = min(c.STAGES, steps) * c.TILE_K * (tile_m(c) + tile_n(c)) + pushed_quads(c) * QUAD
    return elements * REAL_BYTES


def static_shared_bytes(c: Values, _p: Problem) -> int:
    """Bytes of the last block's number and of a barrier of sums, padded to where the rest may start; 0 without them."""
    return 128 if cluster(c) < c.SPLIT_K or pushes(c) else 0


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each share of each tile, and of every cluster's sums, as split_tile.cuh lays them out."""
    if cluster(c) == c.SPLIT_K:
        return 0
    shares = blocks(c, p) // c.SPLIT_K * cluster(c)
    share_quads = ceil_div(c.WARP_M * c.WARP_N // 128, cluster(c) * slices(c)) * threads(c)
    return counter_bytes(shares, p) + shares * (c.SPLIT_K // cluster(c)) * share_quads * QUAD * REAL_BYTES


def launch(c: Values, p: Problem) -> Launch:
    """A launch of SPLIT_K blocks a tile along x; matrices of the batch along y."""
    grid = (blocks_a_matrix(c, p), p.shape["batch"], 1)
    return Launch(grid, (threads(c), 1, 1), shared_bytes(c, p), overlaps=True)


def sums(c: Values) -> int:
    """Sums that a thread holds."""
    return c.WARP_M * c.WARP_N // 32


def copies(c: Values, p: Problem) -> int:
    """Copies that a thread starts in a step, those of both operands together."""
    sides = ((tile_m(c), copy_width("a", p)), (tile_n(c), copy_width("b", p)))
    return sum(ceil_div(tile * c.TILE_K // width, threads(c)) for tile, width in sides)


def copy_width(matrix: str, p: Problem) -> int:
    """Elements of a copy of A ("a") or B ("b"): rows are made of whole copies, and begin at multiples of them."""
    stride = p.shape[f"stride_{matrix}"] if p.shape["batch"] > 1 else 0
    return math.gcd(stored_rows(matrix, p.shape, p.options)[1], p.shape[f"ld{matrix}"], stride, QUAD)


def has_room(p: Problem, d: Limits) -> bool:
    """Whether the grid has a place along y for each matrix of the batch."""
    return p.shape["batch"] <= d.max_grid[1]


def supports(p: Problem) -> bool:
    """Whether it is float32, not limited to CUDA cores, with enough terms for the bound."""
    return p.dtype == "float32" and p.options["accuracy"] != "fp32-fma" and p.shape["k"] >= FEWEST_TERMS


def is_tf32(p: Problem) -> bool:
    """Whether it is float32, and the caller admits TF32."""
    return p.dtype == "float32" and p.options["accuracy"] == "tf32"


def admitted_registers(c: Values, d: Limits) -> int:
    """Registers that the compiler may give a thread so that MIN_BLOCKS blocks fit; it gives them by eights."""
    return min(d.registers_per_multiprocessor // (c.MIN_BLOCKS * threads(c)) // 8 * 8, d.max_registers_per_thread)


def registers_suffice(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether a warp's tile fits the registers that MIN_BLOCKS leaves, and MIN_BLOCKS limits the compiler.

    Where k is split there are few blocks, and saving registers for more pays for small ones only (H200).
    """
    needed = FEWEST_REGISTERS[c.PROMOTE_K].get((c.WARP_M, c.WARP_N))
    admitted = admitted_registers(c, d)
    few = c.SPLIT_K == 1 or c.MIN_BLOCKS >= SMALL_BLOCKS
    asks = c.MIN_BLOCKS == 1 or (admitted < d.max_registers_per_thread // 8 * 8 and few)
    return needed is not None and c.PROMOTE_K <= c.TILE_K and needed <= admitted and asks


def small_products_are_exact_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether k is large enough for small products in BF16, and reading the operands is not what takes the time."""
    reads = min(p.shape["m"], p.shape["n"]) <= SMALLEST_TILE
    return not c.SMALL_BF16 or (p.shape["k"] >= FEWEST_TERMS_BF16 and not reads)


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    return (
        (tile_m(c) <= 16 or tile_m(c) // 2 < p.shape["m"])
        and (tile_n(c) <= SMALLEST_TILE or tile_n(c) // 2 < p.shape["n"])
        and (c.TILE_K == SMALLEST_STEP or p.shape["k"] > c.TILE_K // 2)
    )


def threads_hold_enough(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread has the sums that fall to it when the device is full, or some dozens."""
    share = p.shape["m"] * p.shape["n"] // (d.multiprocessors * RESIDENT_THREADS)
    return min(share, MOST_NEEDED_SUMS) <= sums(c)


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether there are a few warps for each multiprocessor, or tiles are small already."""
    enough = blocks(c, p) * threads(c) >= d.multiprocessors * FEWEST_THREADS
    return enough or tile_m(c) * tile_n(c) <= SMALLEST_TILE * SMALLEST_TILE


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether each block has some steps, and half as many blocks would leave the device short of threads.

    Also whether they are about a whole number for each multiprocessor, where they are more than one.
    """
    if c.SPLIT_K == 1:
        return True
    steps, count = ceil_div(p.shape["k"], c.TILE_K), blocks(c, p)
    enough = count // 2 * threads(c) >= SPLIT_THREADS * d.multiprocessors
    waves = ceil_div(count, d.multiprocessors)
    full = count <= d.multiprocessors or count >= FULLNESS * waves * d.multiprocessors
    return steps >= FEWEST_ROUNDS * c.SPLIT_K * c.STAGES and full and not enough


def clusters_exist(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether the device has clusters and the blocks of a tile divide into some, where they are asked for."""
    return not c.BY_CLUSTER or (d.compute_capability >= (9, 0) and c.SPLIT_K % 2 == 0)


def stages_are_filled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are as many steps as buffers that are copied to ahead."""
    return c.STAGES == FEWEST_STAGES or ceil_div(p.shape["k"], c.TILE_K) >= c.STAGES - 1


def copies_are_few(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread starts at most MOST_COPIES copies a step."""
    return copies(c, p) <= MOST_COPIES


def is_sound_at_launch(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether counters have room for all tiles."""
    return cluster(c) == c.SPLIT_K or counters_fit(blocks(c, p) // c.SPLIT_K * cluster(c))


SHARED_PARAMETERS: tuple[Parameter, ...] = (
    choice("TILE_K", 16, 32, 64, default=32, doc="length of a step along k"),
    powers_of_two("WARPS_M", 1, 4, default=2, doc="warps of a block along m"),
    powers_of_two("WARPS_N", 1, 4, default=2, doc="warps of a block along n"),
    powers_of_two("WARP_M", 16, 64, default=32, doc="rows of C that a warp computes"),
    powers_of_two("WARP_N", 16, 64, default=32, doc="columns of C that a warp computes"),
    choice("STAGES", 2, 3, 4, default=3, doc="buffers in shared memory, one of which is computed on"),
    choice("SPLIT_K", 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128, 256, doc="blocks that share the k of a tile"),
    choice("MIN_BLOCKS", 1, 2, 3, 4, 6, 8, doc="blocks that must fit a multiprocessor by registers"),
    choice("BY_CLUSTER", 0, 1, doc="a tile's blocks add up in 0: a workspace, 1: clusters' shared memory first"),
)
PROMOTED = choice("PROMOTE_K", 16, 32, doc="terms that tensor cores add up between additions to FP32 registers")
SMALL = choice("SMALL_BF16", 0, 1, doc="the two small products: 0 in TF32, 1 in BF16")

CONSTRAINTS = (
    Constraint("no tile of half the size covers the axis", tile_suits_problem, is_thrift=True),
    Constraint("registers suffice for the blocks asked for", registers_suffice),
    Constraint("small products in BF16 are exact enough and of use", small_products_are_exact_enough),
    Constraint("a step's copies are not too many", copies_are_few),
    Constraint("threads hold enough sums", threads_hold_enough, is_thrift=True),
    Constraint("blocks fill the device", device_is_filled, is_thrift=True),
    Constraint("steps fill the stages", stages_are_filled, is_thrift=True),
    Constraint("splitting k serves the device", split_is_of_use, is_thrift=True),
    Constraint("there are clusters where blocks form some", clusters_exist),
)

TENSOR3XTF32 = Variant(
    name="tensor3xtf32",
    doc="FP32 accuracy on tensor cores: both operands split into two TF32 parts, three products added up.",
    source="tensor_mma.cu",
    launch=launch,
    parameters=(choice("PRODUCTS", 3, doc="products of high and low parts"), *SHARED_PARAMETERS, PROMOTED, SMALL),
    constraints=CONSTRAINTS,
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    takes_size=takes_rows_or_batch,
    is_sound_at_launch=is_sound_at_launch,
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    supports=supports,
    has_room=has_room,
)

TENSOR1XTF32 = replace(
    TENSOR3XTF32,
    name="tensor1xtf32",
    doc="Inputs rounded to TF32, one product on tensor cores.",
    parameters=(
        choice("PRODUCTS", 1, doc="one product, of the inputs rounded to TF32"),
        *SHARED_PARAMETERS,
        choice("PROMOTE_K", 16, doc="terms that a warp multiplies at a time"),
        choice("SMALL_BF16", 0, doc="there are no small products"),
    ),
    supports=is_tf32,
)
