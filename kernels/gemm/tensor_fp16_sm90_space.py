"""gemm's variant of FP16 parts on the tensor cores of compute capability 9.0: three launches and their workspace."""

from __future__ import annotations

from tilewright.kernels.kernel import Launch, Preparation, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import WORKSPACE_SHARE

TILE_M = 128
STEP_K = 32  # 64 bytes of a line in FP16
GROUP = 8  # lines that the tensor cores' swizzle spans
MULTIPLIERS = 2  # warpgroups of a block; a third one loads
FINE_PARTS, WIDE_PARTS = 2, 3  # of each number, in FP16 and in BF16
MOST_SHARED = 227 * 1024 - 2048  # of a block, less alignment and barriers
MOST_STAGES = 8
ALIGNMENT = 1024  # of the ring; more than the swizzle needs
SURVEY_THREADS = PACK_THREADS = 256
STRIP = 128  # lines that a block surveys where they are not contiguous
MOST_CHUNKS = 32  # blocks that share a strip
PACK_STEPS = 4  # of a warp, of one group of lines
PROMOTED_SQUARED = 32  # of k: how large PROMOTE_K squared may be
SMALL_TILE = 64  # columns of a tile that may leave multiprocessors idle


def tiles(extent: int, tile: int) -> int:
    """How many tiles cover the extent."""
    return -(-extent // tile)


def stage_bytes(c: Values) -> int:
    """A step of both operands in FP16."""
    return (TILE_M + c.TILE_N) * STEP_K * 2 * FINE_PARTS


def stages(c: Values) -> int:
    """Buffers of a step in shared memory: as many as fit."""
    return min(MOST_STAGES, MOST_SHARED // stage_bytes(c))


def shared_bytes(c: Values) -> int:
    """The ring, and what its alignment may take."""
    return stages(c) * stage_bytes(c) + ALIGNMENT


def static_shared_bytes(c: Values, _p: Problem) -> int:
    """Two barriers a stage."""
    return 16 * stages(c)


def clusters(c: Values, p: Problem) -> int:
    """How many tiles of a whole cluster cover C."""
    return tiles(p.shape["m"], TILE_M * c.CLUSTER) * tiles(p.shape["n"], c.TILE_N)


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the last launch: whole clusters."""
    return min(c.BLOCKS // c.CLUSTER, clusters(c, p)) * c.CLUSTER


def operands(p: Problem) -> tuple[tuple[int, bool], ...]:
    """Of each the number of lines, which a sum runs along, and whether a line is contiguous."""
    return (p.shape["m"], not p.options["trans_a"]), (p.shape["n"], bool(p.options["trans_b"]))


def chunks(p: Problem) -> int:
    """Blocks that share a strip of lines."""
    k = p.shape["k"]
    return tiles(k, tiles(tiles(k, MOST_CHUNKS), 8) * 8)


def launch(c: Values, p: Problem) -> Launch:
    """As many blocks as multiprocessors, or as there are tiles for."""
    return Launch((blocks(c, p), 1, 1), (128 * (MULTIPLIERS + 1), 1, 1), shared_bytes(c))


def launch_survey(_c: Values | None, p: Problem) -> Launch:
    """A block a contiguous line, else a part of a strip of lines."""
    count = sum(lines if along_k else tiles(lines, STRIP) * chunks(p) for lines, along_k in operands(p))
    return Launch((count, 1, 1), (SURVEY_THREADS, 1, 1))


def launch_pack(_c: Values | None, p: Problem) -> Launch:
    """A warp eight lines and a few steps."""
    batches = tiles(tiles(p.shape["k"], STEP_K), PACK_STEPS)
    count = sum(tiles(tiles(lines, GROUP) * batches, PACK_THREADS // 32) for lines, _ in operands(p))
    return Launch((count, 1, 1), (PACK_THREADS, 1, 1))


def workspace_bytes(c: Values, p: Problem) -> int:
    """What is known of the lines, and both operands in three parts; parts/workspace.cuh has the order."""
    return _workspace_bytes(p, c.CLUSTER)


def _workspace_bytes(p: Problem, cluster: int) -> int:
    def aligned(size: int) -> int:
        return tiles(size, 256) * 256

    (m, _), (n, _) = operands(p)
    known = 256 + aligned(4 * (tiles(m, STRIP) + tiles(n, STRIP))) + aligned(4 * (m + n))
    partial = sum(0 if along_k else aligned(16 * lines * chunks(p)) for lines, along_k in operands(p))
    group = GROUP * STEP_K * 2 * WIDE_PARTS
    beyond = cluster * 256 * 192
    parts = (tiles(p.shape["k"], STEP_K) * tiles(lines, GROUP) * group + beyond for lines in (m, n))
    return known + partial + sum(map(aligned, parts))


def clusters_fill_rows(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are as many tiles along m as a cluster has blocks."""
    return c.CLUSTER == 1 or p.shape["m"] > TILE_M


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile would cover n as well."""
    smaller = [tile for tile in TILE_N.values if tile < c.TILE_N]
    return not smaller or p.shape["n"] > smaller[-1]


def promotes_often_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether the tensor cores add up no more products than the bound admits of what they cut off.

    Of uniform inputs the error is 0.131 PROMOTE_K / sqrt(k) bounds, as measured; 0.75 are let pass.
    """
    return PROMOTED_SQUARED * p.shape["k"] >= c.PROMOTE_K**2


def promotes_no_sooner(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether it is one of the two largest steps that the bound admits: smaller ones only cost time."""
    return PROMOTED_SQUARED * p.shape["k"] < (4 * c.PROMOTE_K) ** 2 or PROMOTE_K.values[-2] <= c.PROMOTE_K


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return min(BLOCKS.values, key=lambda count: abs(count - d.multiprocessors)) == c.BLOCKS


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether every other multiprocessor has work, or tiles are small already."""
    return 2 * blocks(c, p) >= d.multiprocessors or (c.TILE_N == SMALL_TILE and c.CLUSTER == 1)


def group_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether there are row tiles to group otherwise than by the default."""
    return GROUP_M.default == c.GROUP_M or tiles(p.shape["m"], TILE_M * c.CLUSTER) > min(c.GROUP_M, GROUP_M.default)


def is_supported(p: Problem) -> bool:
    """Whether FP32's bound is asked for, in float32, of sums long enough for what the tensor cores cut off."""
    is_long = PROMOTE_K.values[0] ** 2 <= PROMOTED_SQUARED * p.shape["k"]
    return p.dtype == "float32" and p.options["accuracy"] == "fp32" and is_long


def has_room(p: Problem, d: Limits) -> bool:
    """Whether the least workspace, the ring in shared memory and the grids of survey and pack fit the device."""
    grids = (step(None, p).grid[0] for step in (launch_survey, launch_pack))
    fits = d.max_shared_bytes >= MOST_SHARED + 2048 and _workspace_bytes(p, 1) <= d.memory_bytes // WORKSPACE_SHARE
    return fits and all(count <= d.max_grid[0] for count in grids)


BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="blocks of the grid: multiprocessors of H20, H100 PCIe, H200")
TILE_N = choice("TILE_N", 64, 96, 128, 160, 176, 192, 208, default=128, doc="columns of C that a block computes")
CLUSTER = choice("CLUSTER", 1, 2, default=1, doc="blocks, one below the other, that share columns of B")
PROMOTE_K = powers_of_two("PROMOTE_K", 64, 512, default=256, doc="products between additions to FP32 registers")
GROUP_M = choice("GROUP_M", 4, 8, 16, default=8, doc="row tiles that share columns of B in the L2 cache")

TENSOR3XFP16_SM90 = Variant(
    name="tensor3xfp16_sm90",
    doc="FP32 accuracy by FP16 parts on Hopper's wgmma: both operands are packed first, three launches in all.",
    source="tensor_fp16_sm90.cu",
    launch=launch,
    before=(Preparation("survey", launch_survey), Preparation("pack", launch_pack)),
    parameters=(BLOCKS, TILE_N, CLUSTER, PROMOTE_K, GROUP_M),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors),
        Constraint("a cluster has rows for all its blocks", clusters_fill_rows),
        Constraint("no smaller tile covers the axis", tile_suits_problem),
        Constraint("sums are promoted often enough", promotes_often_enough),
        Constraint("sums are promoted no sooner", promotes_no_sooner),
        Constraint("blocks fill the device", device_is_filled),
        Constraint("groups of row tiles differ", group_matters),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    min_compute_capability=(9, 0),
    max_compute_capability=(9, 0),
    architecture_suffix="a",
    requires=frozenset({"ptx"}),
    supports=is_supported,
    has_room=has_room,
)
