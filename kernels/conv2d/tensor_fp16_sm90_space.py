"""conv2d's variant of FP16 parts on the tensor cores of compute capability 9.0: three launches and their workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.kernels.conv2d.shape import is_nhwc, out_extents, terms
from tilewright.kernels.kernel import Launch, Preparation, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import WORKSPACE_SHARE, hopper_variant

TILE = 128  # lines that a block computes
STEP = 32  # channels of a step
GROUP = 8  # filters that the tensor cores' swizzle spans
WIDE = 3  # parts of each number at most
THREADS = 384  # two warpgroups that multiply, one of which a warp loads
RING_BYTES = 227 * 1024 - 2048  # of a block, less alignment and barriers
ALIGNMENT, BARRIER_BYTES = 1024, 512
PREPARING_WARPS = 8  # of a block that surveys or packs
PACK_STEPS = 4  # of a warp
PROMOTED_SQUARED = 32  # of k: how large PROMOTE_K squared may be (gemm's variant of that name)
SMALL_TILE = 64  # filters of a tile that may leave multiprocessors idle
FARTHEST_TAP = 64  # pixels between taps of a row that one load serves
MOST_LINES = 2**31 - 2**20


@dataclass(frozen=True)
class Axis:
    """Lines along the height or the width; conv/lines.cuh has the same."""

    phases: int  # sets of lines, in which neighbours are a stride apart
    pitch: int  # lines, with zeros
    farthest: int  # lines from the first tap to the last
    reach: int  # pixels between them


@lru_cache(maxsize=256)  # enumerating a space asks for the same one thousands of times
def axes(p: Problem) -> tuple[Axis, Axis]:
    """The axes of the height and of the width."""
    height, width = (
        _axis(p, extent, letter, suffix)
        for extent, letter, suffix in zip(out_extents(p), "hw", ("", "_w"), strict=True)
    )
    return height, width


def _axis(p: Problem, extent: int, letter: str, suffix: str) -> Axis:
    stride, reach = p.shape[f"stride{suffix}"], p.shape[f"dilation{suffix}"] * (p.shape[f"kernel_{letter}"] - 1)
    shared = min(p.shape[f"padding{suffix}"], reach) if stride == 1 else 0
    return Axis(min(stride, reach + 1), extent + reach // stride - shared, reach // stride, reach)


def line_tiles(p: Problem) -> int:
    """Tiles along the lines."""
    height, width = axes(p)
    return ceil_div(p.shape["batch"] * height.pitch * width.pitch, TILE)


def launch(c: Values, p: Problem) -> Launch:
    """A launch of BLOCKS blocks, or of one for each tile of Y where there are fewer tiles."""
    count = line_tiles(p) * ceil_div(p.shape["filters"], c.TILE_N)
    return Launch((min(c.BLOCKS, count), 1, 1), (THREADS, 1, 1), RING_BYTES + ALIGNMENT, overlaps=True)


def launch_survey(_c: Values | None, p: Problem) -> Launch:
    """A launch of a block for each filter, then of blocks with some pixels each."""
    blocks = p.shape["filters"] + ceil_div(_pixels(p), 32 * (PREPARING_WARPS if is_nhwc(p) else 1))
    return Launch((blocks, 1, 1), (32 * PREPARING_WARPS, 1, 1))


def launch_pack(_c: Values | None, p: Problem) -> Launch:
    """A launch of warps, each for some steps of eight filters and a tap, or of some pixels."""
    batches = ceil_div(ceil_div(p.shape["channels"], STEP), PACK_STEPS)
    filters = ceil_div(p.shape["filters"], GROUP) * p.shape["kernel_h"] * p.shape["kernel_w"] * batches
    pixels = ceil_div(_pixels(p), 8 if is_nhwc(p) else 32) * batches
    blocks = sum(ceil_div(items, PREPARING_WARPS) for items in (filters, pixels))
    return Launch((blocks, 1, 1), (32 * PREPARING_WARPS, 1, 1), overlaps=True)


def _pixels(p: Problem) -> int:
    return math.prod(p.shape[axis] for axis in ("batch", "height", "width"))


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of the summaries, the filters and the lines in three parts, in the order of conv/lines.cuh."""
    return _workspace_bytes(p, c.TILE_N)


def _workspace_bytes(p: Problem, tile_n: int) -> int:
    height, width = axes(p)
    steps = ceil_div(p.shape["channels"], STEP)
    beyond = ceil_div(width.reach, 8) * 8 if p.shape["stride_w"] == 1 and _is_bundled(p) else 0
    lines = line_tiles(p) * TILE + height.farthest * width.pitch + width.farthest + beyond
    images = height.phases * width.phases * steps * 4 * lines * 16 * WIDE
    groups = ceil_div(p.shape["filters"], tile_n) * (tile_n // GROUP)
    filters = p.shape["kernel_h"] * p.shape["kernel_w"] * steps * groups * WIDE * GROUP * STEP * 2
    return ceil_div(256 + 4 * p.shape["filters"], 256) * 256 + filters + images


def _is_bundled(p: Problem) -> bool:
    return p.shape["kernel_w"] > 1 and axes(p)[1].reach <= FARTHEST_TAP


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile would cover the filters as well."""
    smaller = [tile for tile in TILE_N.values if tile < c.TILE_N]
    return not smaller or p.shape["filters"] > smaller[-1]


def promotes_often_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether the tensor cores add up no more products than the bound admits of what they cut off (gemm's variant)."""
    return PROMOTED_SQUARED * terms(p) >= c.PROMOTE_K**2


def promotes_no_sooner(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether PROMOTE_K is one of the two largest steps that the bound admits: smaller ones only cost time."""
    return PROMOTED_SQUARED * terms(p) < (4 * c.PROMOTE_K) ** 2 or PROMOTE_K.values[-2] <= c.PROMOTE_K


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return min(BLOCKS.values, key=lambda count: abs(count - d.multiprocessors)) == c.BLOCKS


def device_is_filled(c: Values, p: Problem, d: Limits) -> bool:
    """Whether every other multiprocessor has work, or tiles are small already."""
    return 2 * launch(c, p).grid[0] >= d.multiprocessors or c.TILE_N == SMALL_TILE


def is_supported(p: Problem) -> bool:
    """Whether the problem is float32 with FP32's bound, whole steps, and sums long enough for what is cut off."""
    exact = p.dtype == "float32" and p.options["accuracy"] == "fp32" and not p.options["depthwise"]
    return exact and p.shape["channels"] % STEP == 0 and PROMOTE_K.values[0] ** 2 <= PROMOTED_SQUARED * terms(p)


def has_room(p: Problem, d: Limits) -> bool:
    """Whether the least workspace, the rings in shared memory and the grids of survey and pack fit the device."""
    grids = (step(None, p).grid[0] for step in (launch_survey, launch_pack))
    fits = (
        d.max_shared_bytes >= RING_BYTES + 2048 and _workspace_bytes(p, SMALL_TILE) <= d.memory_bytes // WORKSPACE_SHARE
    )
    return fits and line_tiles(p) * TILE <= MOST_LINES and all(count <= d.max_grid[0] for count in grids)


BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="blocks, one for each multiprocessor: H20, H100 PCIe, H200")
TILE_N = choice("TILE_N", 64, 96, 128, 160, 192, default=128, doc="filters that a block computes")
PROMOTE_K = powers_of_two("PROMOTE_K", 64, 512, default=256, doc="products between additions to FP32 registers")

TENSOR3XFP16_SM90 = hopper_variant(
    name="tensor3xfp16_sm90",
    doc="FP32 accuracy by FP16 parts on Hopper's wgmma: images packed as lines that every tap shifts, three launches.",
    source="tensor_fp16_sm90.cu",
    launch=launch,
    before=(Preparation("survey", launch_survey), Preparation("pack", launch_pack)),
    parameters=(BLOCKS, TILE_N, PROMOTE_K),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors),
        Constraint("no smaller tile covers the filters", tile_suits_problem),
        Constraint("sums are promoted often enough", promotes_often_enough),
        Constraint("sums are promoted no sooner", promotes_no_sooner),
        Constraint("blocks fill the device", device_is_filled),
    ),
    static_shared_bytes=lambda _c, _p: BARRIER_BYTES,
    workspace_bytes=workspace_bytes,
    supports=is_supported,
    has_room=has_room,
)
