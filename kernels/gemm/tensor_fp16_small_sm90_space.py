"""gemm's variant `tensor3xfp16_small_sm90`: small products by FP16 parts in one launch; its parameters and start."""

from __future__ import annotations

from tilewright.kernels.kernel import Launch, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice
from tilewright.kernels.variant import hopper_variant

MULTIPROCESSOR_BYTES, RESERVED_BYTES = 228 * 1024, 1024  # of shared memory: of a multiprocessor of 9.0, of each block
ALIGNMENT_BYTES = 1024  # the source's static shared memory fits into the alignment of the first swizzle
SIDE, GROUP_THREADS, LINE_BYTES = 64, 128, 128
SUMS_BYTES = SIDE * SIDE * 4
FEWEST_K, MOST_K = 32, 512  # from 32 on the bound, 2 sqrt(k), covers the parts' error; others are faster above (H100)
MOST_PARTS = 8  # parts of k: a thread of a warpgroup has eight quads of a tile
MOST_STEPS = 2
# Threads of a multiprocessor, by steps: with one a thread needs 128 registers at most, with two some 200 (NVRTC 13.0).
MOST_THREADS = {1: 512, 2: 256}
MOST_PRODUCTS = 8  # of 64 cubed, for each multiprocessor


def all_tiles(p: Problem) -> int:
    """Number of tiles of all matrices together."""
    return ceil_div(p.shape["m"], SIDE) * ceil_div(p.shape["n"], SIDE) * p.shape["batch"]


def steps(c: Values, p: Problem) -> int:
    """Steps of TILE_K terms that a warpgroup multiplies."""
    return ceil_div(p.shape["k"], c.TILE_K * c.SLICES * c.SPLIT_K)


def threads(c: Values) -> int:
    """Threads of a block."""
    return GROUP_THREADS * c.SLICES


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of each warpgroup's two parts of B for one or two steps, later its sums, and of sums from other blocks."""
    lines = SIDE if p.options["trans_b"] else c.TILE_K
    of_group = min(steps(c, p), 2) * 2 * lines * LINE_BYTES
    held = c.SLICES * (of_group if c.SLICES == 1 else max(of_group, SUMS_BYTES))
    return held + (SUMS_BYTES if c.SPLIT_K > 1 else 0)


def launch(c: Values, p: Problem) -> Launch:
    """A launch that starts as the previous one ends; its memory lets only RESIDENT blocks on a multiprocessor."""
    grid = (ceil_div(p.shape["m"], SIDE) * ceil_div(p.shape["n"], SIDE) * c.SPLIT_K, p.shape["batch"], 1)
    too_large = MULTIPROCESSOR_BYTES // (c.RESIDENT + 1) // 16 * 16 + 16 - RESERVED_BYTES
    return Launch(grid, (threads(c), 1, 1), max(shared_bytes(c, p), too_large), overlaps=True)


def supports(p: Problem) -> bool:
    """Whether it is float32 at FP32 accuracy with 32 to 512 terms; a batch's matrices fill over a quarter tile."""
    is_fp32 = p.dtype == "float32" and p.options["accuracy"] == "fp32" and not p.options["packed_b"]
    fills = p.shape["batch"] == 1 or max(p.shape["m"], p.shape["n"]) > SIDE // 2
    return is_fp32 and fills and FEWEST_K <= p.shape["k"] <= MOST_K


def has_room(p: Problem, d: Limits) -> bool:
    """Whether a multiprocessor has few products of 64 cubed: with more, pipelined variants are faster."""
    products = all_tiles(p) * ceil_div(p.shape["k"], SIDE)
    fits = d.shared_bytes_per_multiprocessor >= MULTIPROCESSOR_BYTES and d.max_shared_bytes >= MULTIPROCESSOR_BYTES // 2
    return fits and products <= MOST_PRODUCTS * d.multiprocessors and p.shape["batch"] <= d.max_grid[1]


def steps_are_few(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether registers hold all steps, and every warpgroup has terms."""
    parts = c.SLICES * c.SPLIT_K
    return parts <= MOST_PARTS and steps(c, p) <= MOST_STEPS and (parts - 1) * c.TILE_K < p.shape["k"]


def as_many_find_room(c: Values, p: Problem, d: Limits) -> bool:
    """Whether RESIDENT is the number of blocks that each multiprocessor gets, limited by its registers."""
    most = MOST_THREADS.get(steps(c, p), 0) // threads(c)
    return min(ceil_div(all_tiles(p) * c.SPLIT_K, d.multiprocessors), most) == c.RESIDENT


def shared_memory_suffices(c: Values, p: Problem, d: Limits) -> bool:
    """Whether RESIDENT blocks fit a multiprocessor by their shared memory."""
    size = shared_bytes(c, p) + ALIGNMENT_BYTES
    return size <= d.max_shared_bytes and c.RESIDENT * (size + RESERVED_BYTES) <= MULTIPROCESSOR_BYTES


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The start: clusters of two blocks if k has more than one step, and as many warpgroups as there are steps."""
    parts = ceil_div(p.shape["k"], SIDE)
    split = min(parts, 2)
    slices = max(count for count in SLICES.values if count * split <= parts)
    step = SIDE // 2 if p.shape["k"] <= SIDE // 2 else SIDE
    most = MOST_THREADS[ceil_div(p.shape["k"], step * slices * split)] // (GROUP_THREADS * slices)
    resident = min(ceil_div(all_tiles(p) * split, d.multiprocessors), most)
    return {"TILE_K": step, "SLICES": slices, "SPLIT_K": split, "RESIDENT": resident}


SLICES = choice("SLICES", 1, 2, 4, doc="warpgroups of a block that share the terms of a tile")
SPLIT_K = choice("SPLIT_K", 1, 2, 4, 8, doc="blocks of a cluster that share the terms of a tile")

TENSOR3XFP16_SMALL_SM90 = hopper_variant(
    name="tensor3xfp16_small_sm90",
    doc="FP32 accuracy by FP16 parts on Hopper's wgmma, for small products: parts in registers, one launch.",
    source="tensor_fp16_small_sm90.cu",
    launch=launch,
    parameters=(
        choice("TILE_K", 32, 64, default=64, doc="terms of a step; numbers of one step share scales"),
        SLICES,
        SPLIT_K,
        choice("RESIDENT", 1, 2, 3, 4, doc="blocks that fit a multiprocessor at once"),
    ),
    constraints=(
        Constraint("steps are few and each warpgroup has some", steps_are_few),
        Constraint("as many blocks find room as there are", as_many_find_room),
        Constraint("shared memory suffices for them", shared_memory_suffices),
    ),
    static_shared_bytes=lambda _c, _p: ALIGNMENT_BYTES,
    supports=supports,
    has_room=has_room,
    start=start,
)
