"""gemm's variant `tensor3xtf32_sliced`: few blocks, whose warps share the terms of a tile; its parameters and start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilewright.kernels.gemm import tensor_mma_space as mma
from tilewright.kernels.kernel import Launch, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

FEWEST_THREADS, MOST_THREADS = 128, 512  # of a multiprocessor and of a block: a warp or more for each scheduler
MULTIPROCESSOR_BYTES, RESERVED_BYTES = 228 * 1024, 1024  # of shared memory: of a multiprocessor of 9.0, of each block
MOST_SUMS = 2048  # of a warp
# The estimate that chooses a search's start, by clocks that blocks read (H200). In a cycle a multiprocessor computes so
# many products in TF32 and reads so many bytes from the L2 cache. Cycles of a step beside its products; of a chain of
# products; to add up a tile's sums in a cluster, for each pair of its blocks, or in a workspace, from which the last
# block reads so many bytes in a cycle. Steps of twice the length are faster if a block has some, and room for three.
PRODUCTS_A_CYCLE, BYTES_A_CYCLE = 400, 25
STEP_CYCLES, CHAIN_CYCLES, CLUSTER_CYCLES, PAIR_CYCLES, WORKSPACE_CYCLES = 450, 110, 900, 20, 3000
WORKSPACE_BYTES_A_CYCLE = 64
STEP, LONG_STEP, FEWEST_LONG_STEPS, FEWEST_LONG_STAGES = 64, 128, 4, 3
START_TILES, LARGEST_TILE = (16, 32, 64, 128), 64 * 128
FULL = 7 / 8  # of the multiprocessors: 112 blocks in clusters of 4 or 8 run at once, 128 take two rounds (H100)


def launch(c: Values, p: Problem) -> Launch:
    """A launch that begins while the one before ends, on multiprocessors with room for exactly RESIDENT blocks.

    Otherwise blocks that begin early crowd on those that are free first.
    """
    plain = mma.launch(c, p)
    too_large = MULTIPROCESSOR_BYTES // (c.RESIDENT + 1) // 16 * 16 + 16 - RESERVED_BYTES
    return replace(plain, shared_bytes=max(plain.shared_bytes, too_large), overlaps=True)


def has_room(p: Problem, d: Limits) -> bool:
    """Whether shared memory decides how many blocks find room, and large tiles leave multiprocessors idle."""
    blocks = ceil_div(p.shape["m"], 64) * ceil_div(p.shape["n"], 128) * p.shape["batch"]
    decides = (
        d.shared_bytes_per_multiprocessor == MULTIPROCESSOR_BYTES and d.max_shared_bytes >= MULTIPROCESSOR_BYTES // 2
    )
    return mma.has_room(p, d) and decides and blocks <= d.multiprocessors


def as_many_find_room(c: Values, p: Problem, d: Limits) -> bool:
    """Whether RESIDENT is the number of blocks that fall to a multiprocessor."""
    return ceil_div(mma.blocks(c, p), d.multiprocessors) == c.RESIDENT


def warps_are_of_use(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether the warps keep a multiprocessor's schedulers busy, and registers suffice for a block."""
    enough = c.RESIDENT * mma.threads(c) >= FEWEST_THREADS and mma.threads(c) <= MOST_THREADS
    return enough and c.WARP_M * c.WARP_N <= MOST_SUMS


def stages_are_filled(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a block has as many steps as buffers; where it has just as many, all copies begin at once."""
    return ceil_div(ceil_div(p.shape["k"], c.TILE_K), c.SPLIT_K) >= c.STAGES or c.STAGES == mma.FEWEST_STAGES


def split_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether each block has a step, and half as many blocks would leave the device short of threads."""
    if c.SPLIT_K == 1:
        return True
    enough = mma.blocks(c, p) // 2 * mma.threads(c) >= mma.SPLIT_THREADS * d.multiprocessors
    return ceil_div(p.shape["k"], c.TILE_K) >= c.SPLIT_K and not enough


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The tile and split that take the least time by estimate, where a multiprocessor has one block at most."""
    best = min(_estimates(p, d), default=None)
    if best is None:
        return {}
    _, tile_m, tile_n, split = best
    warp_m, warp_n, sliced = _warps(tile_m, tile_n)
    others = 4 * (tile_m * tile_n * sliced + 1024)  # bytes beside the ring: what slices or blocks send each other

    def stages(step: int) -> int:
        steps = ceil_div(ceil_div(p.shape["k"], step), split)
        fitting = (d.max_shared_bytes - others) // (mma.REAL_BYTES * step * (tile_m + tile_n))
        return max(count for count in STAGES.values if count <= max(mma.FEWEST_STAGES, min(steps, fitting)))

    is_long = p.shape["k"] >= FEWEST_LONG_STEPS * LONG_STEP * split and stages(LONG_STEP) >= FEWEST_LONG_STAGES
    step = LONG_STEP if is_long else STEP
    return {
        "WARP_M": warp_m,
        "WARP_N": warp_n,
        "WARPS_M": tile_m // warp_m,
        "WARPS_N": tile_n // warp_n,
        "SLICES": sliced,
        "TILE_K": step,
        "SPLIT_K": split,
        "BY_CLUSTER": int(1 < split <= mma.MOST_BLOCKS_OF_CLUSTER),
        "STAGES": stages(step),
    }


def _warps(tile_m: int, tile_n: int) -> tuple[int, int, int]:
    """A warp's rows and columns, and slices for four warps in all."""
    warp_m, warp_n = min(tile_m, 32), min(tile_n, 32)
    return warp_m, warp_n, max(1, 4 * warp_m * warp_n // (tile_m * tile_n))


def _estimates(p: Problem, d: Limits) -> Iterator[tuple[float, int, int, int]]:
    """Estimated cycles, tile and split for each candidate."""
    m, n, k = (p.shape[axis] for axis in "mnk")
    for tile_m, tile_n, split in product(START_TILES, START_TILES, SPLIT_K.values):
        blocks = ceil_div(m, tile_m) * ceil_div(n, tile_n) * split * p.shape["batch"]
        divides = split & (split - 1) == 0 and (split == 1 or split * STEP <= k)  # into clusters, and steps of k
        room = d.multiprocessors * (FULL if 2 < split <= mma.MOST_BLOCKS_OF_CLUSTER else 1)
        if not divides or tile_m * tile_n > LARGEST_TILE or blocks > room:
            continue
        warp_m, _, sliced = _warps(tile_m, tile_n)
        multiply = STEP * tile_m * tile_n * 3 / PRODUCTS_A_CYCLE
        load = STEP * (tile_m + tile_n) * mma.REAL_BYTES * blocks / (BYTES_A_CYCLE * d.multiprocessors)
        wait = STEP_CYCLES + CHAIN_CYCLES * warp_m // 16 * ceil_div(STEP // 16, sliced)
        together = CLUSTER_CYCLES + PAIR_CYCLES * split**2
        last = WORKSPACE_CYCLES + split * tile_m * tile_n * mma.REAL_BYTES / WORKSPACE_BYTES_A_CYCLE
        add = 0 if split == 1 else together if split <= mma.MOST_BLOCKS_OF_CLUSTER else last
        yield ceil_div(ceil_div(k, STEP), split) * max(multiply, load, wait) + add, tile_m, tile_n, split


SPLIT_K = choice("SPLIT_K", 1, 2, 3, 4, 6, 8, 16, 32, 64, 128, doc="blocks that share the k of a tile")
STAGES = choice("STAGES", 2, 3, 4, 6, 8, default=3, doc="buffers in shared memory, one of which is computed on")

TENSOR3XTF32_SLICED = replace(
    mma.TENSOR3XTF32,
    name="tensor3xtf32_sliced",
    doc="FP32 accuracy on tensor cores for few tiles: groups of a block's warps share the terms of a tile.",
    source="tensor_sliced.cu",
    launch=launch,
    start=start,
    has_room=has_room,
    takes_size=lambda _p: False,  # how many blocks there are decides what it may ask of a multiprocessor
    min_compute_capability=(9, 0),
    parameters=(
        choice("PRODUCTS", 3, doc="products of high and low parts"),
        choice("SLICES", 1, 2, 4, 8, default=2, doc="groups of warps that share the terms of a step"),
        choice("TILE_K", 32, 64, 128, default=64, doc="length of a step along k"),
        powers_of_two("WARPS_M", 1, 4, default=2, doc="warps of a slice along m"),
        powers_of_two("WARPS_N", 1, 4, default=2, doc="warps of a slice along n"),
        powers_of_two("WARP_M", 16, 64, default=32, doc="rows of C that a warp computes"),
        powers_of_two("WARP_N", 16, 64, default=32, doc="columns of C that a warp computes"),
        STAGES,
        SPLIT_K,
        choice("RESIDENT", 1, 2, 3, 4, doc="blocks that fit a multiprocessor at once"),
        choice("MIN_BLOCKS", 1, doc="blocks that must fit a multiprocessor by registers"),
        choice("BY_CLUSTER", 0, 1, doc="a tile's blocks add up in 0: a workspace, 1: clusters' shared memory first"),
        mma.PROMOTED,
        mma.SMALL,
    ),
    constraints=(
        Constraint("as many blocks find room as there are", as_many_find_room),
        Constraint("slices share steps", lambda c, _p, _d: c.SLICES == 1 or c.SLICES * c.PROMOTE_K <= c.TILE_K),
        Constraint("there are warps for each scheduler", warps_are_of_use),
        Constraint("no tile of half the size covers the axis", mma.tile_suits_problem),
        Constraint("registers suffice for the blocks asked for", mma.registers_suffice),
        Constraint("small products in BF16 are exact enough and of use", mma.small_products_are_exact_enough),
        Constraint("a step's copies are not too many", mma.copies_are_few),
        Constraint("steps fill the stages", stages_are_filled),
        Constraint("splitting k serves the device", split_is_of_use),
        Constraint("there are clusters where blocks form some", mma.clusters_exist),
    ),
)
