"""The estimated time of gemm's variant `tensor_half_turned_sm90`, by which a search begins and ends."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from tilewright.kernels.gemm.tensor_half_sm90_space import LINE_BYTES, STEP_K
from tilewright.kernels.kernel import ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Values

BLOCK_N = 64  # columns of B, which are a product's rows
GRAIN_M = 8  # rows of A, which are a product's columns
MOST_M = 256  # rows of a tile
SMALL_M, FEW_ROWS = 64, 256  # tiles of fewer rows than SMALL_M are for problems of so many
MOST_SUMS = {1: 192, 2: 192, 3: 96}  # of a thread, by the warpgroups that multiply: beside them there are addresses
MOST_IN_CLUSTER = 8
FEWEST_STEPS = 4  # of a part of a tile
Widths = tuple[tuple[int, int], ...]
WIDTHS: Widths = ((64, 1), (128, 2), (192, 3), (256, 2))  # of tiles, and warpgroups that multiply

# Fitted to trials on an H200. Cycles of a launch and for each block of a cluster, from a tile to the next, of sums over
# a cluster and by the workspace.
CYCLES_BEFORE, CYCLES_OF_BLOCK, CYCLES_BETWEEN, CYCLES_SPLIT, CYCLES_SPLIT_FAR = 2500, 60, 1500, 1000, 2000
# Bytes a cycle of a multiprocessor where all load; and sums that it stores in one.
L2_BYTES_PER_CYCLE, MEMORY_BYTES_PER_CYCLE, SPLIT_BYTES_PER_CYCLE, FAR_BYTES_PER_CYCLE = 52, 18, 48, 48
STORED_PER_CYCLE = 24
ALONE = 0.08  # of the products' time, what more they take where no other warpgroup multiplies
HELD_UP = 0.1  # of the shorter of two things at once
# What clusters of at most so many blocks take of the multiprocessors: an H200's driver says 66, 39, 30, 17 and 15
# clusters. Groups of multiprocessors that may have one differ in size, and from card to card.
MULTIPROCESSORS_TAKEN = ((2, 1.0), (3, 0.887), (4, 0.91), (6, 0.773), (MOST_IN_CLUSTER, 0.91))


def at_once(blocks_of_cluster: int, d: Limits) -> int:
    """How many multiprocessors clusters of so many blocks take at once: large clusters leave some over."""
    share = next((share for size, share in MULTIPROCESSORS_TAKEN if blocks_of_cluster <= size), 1.0)
    return max(int(d.multiprocessors * share) // blocks_of_cluster, 1) * blocks_of_cluster


class Tiling(NamedTuple):
    """The values of a configuration that the estimate of its time depends on."""

    TILE_M: int
    TILE_N: int
    MULTIPLIERS: int
    CLUSTER_M: int
    CLUSTER_N: int
    SPLIT_K: int
    SPLIT_FAR: int


def cycles(c: Values | Tiling, p: Problem, d: Limits) -> float:
    """The estimated cycles of the product: turns of tiles, whose steps take the longer of products and loads."""
    m, n, k, batch = (p.shape[axis] for axis in ("m", "n", "k", "batch"))
    split, of_cluster = c.SPLIT_K * c.SPLIT_FAR, c.CLUSTER_M * c.CLUSTER_N * c.SPLIT_K
    clusters = batch * ceil_div(m, c.TILE_M * c.CLUSTER_M) * ceil_div(n, c.TILE_N * c.CLUSTER_N)
    turns = ceil_div(clusters * c.SPLIT_FAR, at_once(of_cluster, d) // of_cluster)
    products = c.TILE_N // BLOCK_N * (STEP_K // 16) * max(c.TILE_M / 2, 16 + c.TILE_M / 4)
    loads = (c.TILE_M / c.CLUSTER_N + c.TILE_N / c.CLUSTER_M) * LINE_BYTES / L2_BYTES_PER_CYCLE
    steps = ceil_div(ceil_div(k, STEP_K), split) * beside(products * (1 + ALONE / c.MULTIPLIERS**2), loads)
    sums = c.TILE_M * c.TILE_N * 4
    together = CYCLES_SPLIT + sums / SPLIT_BYTES_PER_CYCLE if c.SPLIT_K > 1 else 0
    if c.SPLIT_FAR > 1:
        together = CYCLES_SPLIT_FAR + sums * (1 + c.SPLIT_FAR) / FAR_BYTES_PER_CYCLE
    memory = batch * n * k * p.item_bytes / d.multiprocessors / MEMORY_BYTES_PER_CYCLE
    between = CYCLES_BETWEEN + c.TILE_M * c.TILE_N / STORED_PER_CYCLE
    return beside(turns * (steps + between), memory) + CYCLES_BEFORE + CYCLES_OF_BLOCK * of_cluster + together


def beside(first: float, second: float) -> float:
    """How long two things take at once: the longer one, and the time that they delay each other."""
    return max(first, second) + HELD_UP * min(first, second)


@lru_cache(maxsize=64)  # a constraint asks for the same one thousands of times
def fastest(p: Problem, d: Limits, widths: Widths = WIDTHS) -> tuple[float, Tiling]:
    """The least time by estimate, and the tiling of these widths that takes it."""
    m, n = p.shape["m"], p.shape["n"]
    grain = BLOCK_N if p.options["trans_a"] else GRAIN_M
    heights = {ceil_div(ceil_div(m, count), grain) * grain for count in range(1, ceil_div(m, SMALL_M) + 1)}
    heights = {height for height in heights if height <= MOST_M and (height >= SMALL_M or m <= FEW_ROWS)}
    ways = [(split, 1) for split in (1, 2, 3, 4, 6, 8)] + [(1, far) for far in (2, 3, 4, 6, 8)]
    candidates = [
        Tiling(tile_m, tile_n, multipliers, cluster_m, cluster_n, split, far)
        for tile_m, (tile_n, multipliers) in product(sorted(heights), widths)
        for (split, far), cluster_m, cluster_n in product(ways, (1, 2), (1, 2, 4))
        if split * cluster_m * cluster_n <= MOST_IN_CLUSTER // 2
        and tile_n // BLOCK_N // multipliers * tile_m // 2 <= MOST_SUMS[multipliers]
        and m > tile_m * (cluster_m - 1)
        and n > tile_n * (cluster_n - 1)
        and n > tile_n - BLOCK_N
        and (split * far == 1 or ceil_div(p.shape["k"], STEP_K) >= FEWEST_STEPS * split * far)
    ]
    return min((cycles(c, p, d), c) for c in candidates)


def start(p: Problem, d: Limits, widths: Widths = WIDTHS) -> dict[str, int]:
    """The tile, and how blocks share it, that takes the least time by estimate."""
    return fastest(p, d, widths)[1]._asdict()
