"""gemm's variant `tensor_half_packed_sm90`: for rows that begin anywhere, both operands are packed ahead."""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm import tensor_half_sm90_space as mapped
from tilewright.kernels.gemm.tensor_half_sm90_space import LINE_BYTES, STEP_K, TENSOR_HALF_SM90, tiles
from tilewright.kernels.kernel import Launch, Preparation
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Values
from tilewright.kernels.variant import no_tensor_maps

GROUP = 8  # lines that a swizzle spans
CHUNK = 8  # numbers of a line that a thread packs
LINES_BEYOND = 512  # that a cluster's tile may read behind an operand
PACK_THREADS = 256
WORKSPACE_PART = 32  # of the device's memory


def packed_lines(p: Problem, x: str) -> int:
    """Lines of 64 numbers of an operand, A or B: pieces of the rows of all its matrices, and rows that are added."""
    side, steps = p.shape["m" if x == "a" else "n"], tiles(p.shape["k"], STEP_K)
    matrices = p.shape["batch"] if p.shape[f"stride_{x}"] else 1
    if lies_along_k(p, x):
        return steps * tiles(side, GROUP) * GROUP * matrices
    return tiles(side, STEP_K) * steps * STEP_K * matrices


def lies_along_k(p: Problem, x: str) -> bool:
    """Whether rows of the operand, as it is stored, go along k."""
    return bool(p.options["trans_b"]) if x == "b" else not p.options["trans_a"]


def launch_pack(_c: Values | None, p: Problem) -> Launch:
    """Blocks for either operand, a thread a chunk."""
    count = sum(tiles(packed_lines(p, x) * (STEP_K // CHUNK), PACK_THREADS) for x in "ab")
    return Launch((count, 1, 1), (PACK_THREADS, 1, 1), overlaps=True)


def packed_bytes(p: Problem) -> int:
    """Of both operands in the workspace."""
    return sum((packed_lines(p, x) + (LINES_BEYOND if lies_along_k(p, x) else 0)) * LINE_BYTES for x in "ab")


def workspace_bytes(c: Values, p: Problem) -> int:
    """Both operands, and behind them what blocks that share a tile leave."""
    return packed_bytes(p) + mapped.workspace_bytes(c, p)


def is_supported(p: Problem) -> bool:
    """Whether it is a type of 16 bits with rows that no tensor map can name."""
    return p.dtype in HALF and not mapped.rows_are_aligned(p)


def has_room(p: Problem, d: Limits) -> bool:
    """Whether shared memory, the workspace and the grid that packs fit the device."""
    fits = mapped.has_room(p, d) and packed_bytes(p) <= d.memory_bytes // WORKSPACE_PART
    return fits and launch_pack(None, p).grid[0] <= d.max_grid[0]


TENSOR_HALF_PACKED_SM90 = replace(
    TENSOR_HALF_SM90,
    name="tensor_half_packed_sm90",
    doc="bfloat16 and float16 on Hopper's wgmma where rows begin anywhere: operands are packed first, in two launches.",
    source="tensor_half_packed_sm90.cu",
    before=(Preparation("pack", launch_pack),),
    workspace_bytes=workspace_bytes,
    workspace_share=WORKSPACE_PART,
    tensor_maps=no_tensor_maps,
    supports=is_supported,
    has_room=has_room,
)
