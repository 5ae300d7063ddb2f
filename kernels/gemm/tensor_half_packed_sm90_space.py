"""gemm's variant `tensor_half_packed_sm90`: for rows that begin anywhere, both operands are packed ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm import tensor_half_sm90_space as mapped
from tilewright.kernels.gemm.layout import fastest_tile
from tilewright.kernels.gemm.tensor_half_sm90_space import LINE_BYTES, STEP_K, TENSOR_HALF_SM90
from tilewright.kernels.kernel import Launch, Preparation, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Values, choice
from tilewright.kernels.variant import no_tensor_maps

GROUP = 8  # rows or columns of a packed unit, which has 64 k
WARP_CHUNKS = 4  # chunks of a row that a warp packs, where rows run across k
LINES_BEYOND = 512  # lines behind an operand that a cluster's tile may read
PACK_THREADS = 256
MOST_SUMS = 272  # of a warpgroup: columns times blocks of 64 rows
LARGE_SIDE = 1280  # rows and columns of C from which packing pays
WORKSPACE_PART = 32  # of the device's memory


def packed_lines(p: Problem, x: str) -> int:
    """Lines of 64 elements of packed A or B: whole units of rows or columns for each step of all matrices."""
    return matrix_steps(p, x) * units(p, x) * GROUP


def matrix_steps(p: Problem, x: str) -> int:
    """Steps of all matrices of an operand together."""
    return ceil_div(p.shape["k"], STEP_K) * (p.shape["batch"] if p.shape[f"stride_{x}"] else 1)


def units(p: Problem, x: str) -> int:
    """Units of one matrix of the operand in a step."""
    return ceil_div(p.shape["m" if x == "a" else "n"], GROUP)


def packed_chunks(p: Problem, x: str) -> int:
    """Chunks of an operand; where rows run across k, with the chunks of warps that lie outside of it."""
    together = 1 if lies_along_k(p, x) else WARP_CHUNKS
    return matrix_steps(p, x) * STEP_K * ceil_div(units(p, x), together) * together


def lies_along_k(p: Problem, x: str) -> bool:
    """Whether rows of the operand, as it is stored, run along k."""
    return bool(p.options["trans_b"]) if x == "b" else not p.options["trans_a"]


def launch_pack(_c: Values | None, p: Problem) -> Launch:
    """A launch of blocks for both operands, with one thread for each chunk."""
    count = sum(ceil_div(packed_chunks(p, x), PACK_THREADS) for x in "ab")
    return Launch((count, 1, 1), (PACK_THREADS, 1, 1), overlaps=True)


def packed_bytes(p: Problem) -> int:
    """Bytes of both packed operands in the workspace."""
    return sum((packed_lines(p, x) + LINES_BEYOND) * LINE_BYTES for x in "ab")


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of both packed operands, and after them of the sums of blocks that share a tile."""
    return packed_bytes(p) + mapped.workspace_bytes(c, p)


def staging_bytes(c: Values, p: Problem) -> int:
    """Bytes of the warps' buffers for storing C: three pieces of rows if rows have three pieces, else two."""
    held = 3 if ceil_div(c.TILE_N * mapped.out_bytes(p), LINE_BYTES) == 3 else 2
    return 0 if c.SPLIT_K > 1 else 4 * c.MULTIPLIERS * held * mapped.PIECE_ROWS * LINE_BYTES


def stages(c: Values, p: Problem) -> int:
    """The number of buffers for a step in shared memory."""
    return mapped.stages_beside(staging_bytes(c, p), c, mapped.MOST_STAGES)


def launch(c: Values, p: Problem) -> Launch:
    """The launch of tensor_half_sm90 with this variant's shared memory."""
    shared = stages(c, p) * mapped.stage_bytes(c) + staging_bytes(c, p) + mapped.ALIGNMENT
    return replace(mapped.launch(c, p), shared_bytes=shared)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of barriers, and of a word for clusters that add up in the workspace."""
    return mapped.barrier_bytes(stages(c, p), c)


def is_supported(p: Problem) -> bool:
    """Whether the dtype has 16 bits, and tensor maps cannot describe the rows or packing them pays."""
    return p.dtype in HALF and (not mapped.rows_are_aligned(p) or is_worth_packing(p))


def is_worth_packing(p: Problem) -> bool:
    """Whether rows begin within sectors and C is so large that loading them would take longer than packing."""
    splits = any(mapped.splits_sectors(p, x) for x in "ab")
    return splits and min(p.shape["m"], p.shape["n"]) >= LARGE_SIDE


def has_room(p: Problem, d: Limits) -> bool:
    """Whether shared memory, the workspace and the grid that packs fit the device."""
    fits = mapped.has_room(p, d) and packed_bytes(p) <= d.memory_bytes // WORKSPACE_PART
    return fits and launch_pack(None, p).grid[0] <= d.max_grid[0]


def block_holds_tile(c: Values, _p: Problem, _d: Limits) -> bool:
    """Whether warpgroups have whole blocks of 64 rows, and registers for the sums."""
    return mapped.holds_tile(c, MOST_SUMS)


def stages_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads run ahead of products, and a split tile's sums fit into the ring."""
    return mapped.ring_suffices(stages(c, p), c)


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile would cover an axis as well."""
    return mapped.is_smallest(c.TILE_M, mapped.TILE_M, p.shape["m"]) and mapped.is_smallest(
        c.TILE_N, TILE_N, p.shape["n"]
    )


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The tile with the shortest estimated time; some width among the multiples of 8 leaves few tiles partly empty."""
    sizes = [(m, n) for m, n in product(mapped.TILE_M.values, TILE_N.values) if ceil_div(m, 128) * n <= MOST_SUMS]
    tile_m, tile_n = fastest_tile(p, d, sizes, mapped.LOAD_COST)
    return {"TILE_M": tile_m, "TILE_N": tile_n, "MULTIPLIERS": min(tile_m // 64, 2)}


TILE_N = choice(
    *("TILE_N", 64, 72, 80, 96, 112, 128, 136, 144, 160, 176, 192, 208, 224, 256),
    default=256,
    doc="columns of C that a block computes",
)

OWN: dict[str, Callable[[Values, Problem, Limits], bool]] = {
    "warpgroups hold the tile's sums": block_holds_tile,
    "stages fit shared memory": stages_suffice,
    "no smaller tile covers the axis": tile_suits_problem,
}
"""They replace the constraints of these names of tensor_half_sm90."""

TENSOR_HALF_PACKED_SM90 = replace(
    TENSOR_HALF_SM90,
    name="tensor_half_packed_sm90",
    doc="bfloat16 and float16 on Hopper's wgmma for rows that begin anywhere; a first launch packs operands.",
    source="tensor_half_packed_sm90.cu",
    launch=launch,
    parameters=tuple(TILE_N if one.name == "TILE_N" else one for one in TENSOR_HALF_SM90.parameters),
    constraints=tuple(replace(one, holds=OWN.get(one.name, one.holds)) for one in TENSOR_HALF_SM90.constraints),
    start=start,
    static_shared_bytes=static_shared_bytes,
    before=(Preparation("pack", launch_pack),),
    workspace_bytes=workspace_bytes,
    workspace_share=WORKSPACE_PART,
    tensor_maps=no_tensor_maps,
    supports=is_supported,
    has_room=has_room,
    takes_size=lambda _p: False,  # where operands are packed is compiled in
)
