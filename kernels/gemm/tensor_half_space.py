"""gemm's variant `tensor_half`: its parameters, what they take of a multiprocessor, and which are worth a trial.

Blocks share tiles as those of `tensor_fp64` do; what is counted in bytes and registers is its own.
"""

from __future__ import annotations

import math

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm.layout import counter_bytes, takes_rows_or_batch
from tilewright.kernels.gemm.tensor_fp64_space import (
    TENSOR_FP64,
    block_is_of_use,
    blocks,
    blocks_share_well,
    device_is_filled,
    is_sound_at_launch,
    parts,
    shared_tiles,
    split_is_of_use,
    stages_are_filled,
    static_shared_bytes,
    sums,
    threads_hold_enough,
)
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
from tilewright.kernels.space import Constraint, Values, choice

HALF_BYTES, SUM_BYTES = 2, 4
CHUNK = 8  # elements of 16 bytes, the largest copy
QUAD = 4  # sums of 16 bytes
SMALLEST_STEP = 32
SMALLEST_TILE = 16
OTHER_REGISTERS = 40  # addresses and counters
MOST_COPIES = 64  # of one thread in a step: each is code twice over


def shared_bytes(c: Values, _p: Problem) -> int:
    """Bytes of STAGES tiles of both operands; with clusters at least a tile of sums."""
    ring = c.STAGES * c.TILE_K * (tile_m(c) + tile_n(c)) * HALF_BYTES
    return max(ring, tile_m(c) * tile_n(c) * SUM_BYTES) if c.BY_CLUSTER else ring


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of a counter for each share of each shared tile, and of every part's sums (split_tile.cuh)."""
    if parts(c, p) == 1:
        return 0
    shares = shared_tiles(c, p) * cluster(c)
    share_quads = ceil_div(sums(c) // QUAD, cluster(c)) * threads(c)
    return counter_bytes(shares, p) + shares * parts(c, p) * share_quads * QUAD * SUM_BYTES


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x, those of all matrices of a batch."""
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes(c, p), overlaps=True)


def copied_at_once(matrix: str, line: int, p: Problem) -> int:
    """How many elements one copy of a matrix ("a" or "b") takes, with so many in a line."""
    stride = p.shape[f"stride_{matrix}"] if p.shape["batch"] > 1 else 0
    return math.gcd(line, p.shape[f"ld{matrix}"], stride, CHUNK)


def lines(p: Problem) -> tuple[tuple[str, int], tuple[str, int]]:
    """Each matrix with the elements in a line of it as it is stored."""
    line_a, line_b = p.shape["m" if p.options["trans_a"] else "k"], p.shape["k" if p.options["trans_b"] else "n"]
    return ("a", line_a), ("b", line_b)


def copies(c: Values, p: Problem) -> int:
    """Copies that a thread starts in a step, those of both operands together."""
    widths = (copied_at_once(matrix, line, p) for matrix, line in lines(p))
    sides = zip((tile_m(c), tile_n(c)), widths, strict=True)
    return sum(ceil_div(tile * c.TILE_K // width, threads(c)) for tile, width in sides)


def registers(c: Values, p: Problem) -> int:
    """An estimate of the registers a thread needs: sums, the terms of one product or two, and what copies need."""
    terms = (c.WARP_M + c.WARP_N) // 4 * (1 + c.AHEAD)
    is_by_element = any(copied_at_once(matrix, line, p) == 1 for matrix, line in lines(p))
    return sums(c) + terms + copies(c, p) * (2 if is_by_element else 1) + OTHER_REGISTERS


def supports(p: Problem) -> bool:
    """Whether the dtype has 16 bits; any shape and layout will do."""
    return p.dtype in HALF


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
        and (c.TILE_K == SMALLEST_STEP or p.shape["k"] > c.TILE_K // 2)
    )


def copies_are_few(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread starts at most MOST_COPIES copies a step."""
    return copies(c, p) <= MOST_COPIES


def sharing_is_of_use(c: Values, p: Problem, d: Limits) -> bool:
    """Whether `blocks_share_well` holds with the memory and registers of this variant's blocks."""
    return blocks_share_well(c, p, d, shared_bytes(c, p), registers(c, p))


TENSOR_HALF = Variant(
    name="tensor_half",
    doc="bfloat16 and float16 on tensor cores: warp tiles in registers, fed by a ring of asynchronous copies.",
    source="tensor_half.cu",
    launch=launch,
    parameters=(
        choice("TILE_K", 32, 64, doc="length of a step along k"),
        *(parameter for parameter in TENSOR_FP64.parameters if parameter.name not in {"TILE_K", "MMA_K"}),
    ),
    constraints=(
        Constraint("a block is at most eight warps", block_is_of_use, is_thrift=True),
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
