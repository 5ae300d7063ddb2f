"""attention's variant for few keys on Hopper: all of a head's K and V in a block's shared memory, in one launch."""

from __future__ import annotations

from tilewright.kernels.attention.tensor_fp16_sm90_space import (
    ALIGNMENT,
    BLOCKS,
    KEPT_SUMS,
    MOST_SHARED,
    MULTIPLIERS,
    TILE_KEYS,
    WARPGROUP_QUERIES,
    blocks_are_multiprocessors,
    keys_suit,
    panels,
    queries_bytes,
    queries_suit,
    stage_bytes,
    sums_fit,
    tiles,
)
from tilewright.kernels.kernel import Launch
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values
from tilewright.kernels.variant import hopper_variant

LANES_OF_ROW = (4, 8, 16)  # threads that read a row of up to 32, 64 and 128 numbers
CHUNK = 8  # numbers of a thread


def head_bytes(c: Values, p: Problem) -> int:
    """A head's tiles of K and V, and a block's queries."""
    return 2 * tiles(p.shape["keys"], c.TILE_KEYS) * stage_bytes(c, p) + queries_bytes(c, p)


def launch(c: Values, p: Problem) -> Launch:
    """As many blocks as multiprocessors, or as there are heads."""
    blocks = min(c.BLOCKS, p.shape["batch"] * p.shape["heads"])
    return Launch((blocks, 1, 1), (128 * c.MULTIPLIERS, 1, 1), head_bytes(c, p) + ALIGNMENT, overlaps=True)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """A scale for each query; of each column of V the largest number, and how many are far below it."""
    lanes = next(count for count in LANES_OF_ROW if p.shape["depth"] <= CHUNK * count)
    return c.MULTIPLIERS * WARPGROUP_QUERIES * 4 + 2 * 4 * CHUNK * lanes


def head_fits(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether all of a head has a place."""
    return head_bytes(c, p) <= MOST_SHARED


def has_room(p: Problem, d: Limits) -> bool:
    """Whether a head of so many keys fits with the fewest queries."""
    keys = tiles(p.shape["keys"], TILE_KEYS.values[0]) * TILE_KEYS.values[0]
    least = (2 * keys + min(KEPT_SUMS) * WARPGROUP_QUERIES) * 256 * panels(p)
    return d.max_shared_bytes >= MOST_SHARED + 4096 and least <= MOST_SHARED


def start(p: Problem, _d: Limits) -> dict[str, int]:
    """As few tiles of keys as registers hold, as large as the keys need."""
    most = KEPT_SUMS[MULTIPLIERS.default] - p.shape["depth"]
    fitting = [count for count in TILE_KEYS.values if count <= most]
    count = tiles(p.shape["keys"], fitting[-1])
    return {"TILE_KEYS": next(one for one in fitting if count * one >= p.shape["keys"])}


RESIDENT3XFP16_SM90 = hopper_variant(
    name="resident3xfp16_sm90",
    doc="As tensor3xfp16_sm90, for few keys: a block keeps all of a head's K and V; one launch, no workspace.",
    source="resident_fp16_sm90.cu",
    launch=launch,
    parameters=(BLOCKS, TILE_KEYS, MULTIPLIERS),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors),
        Constraint("sums fit the registers", sums_fit),
        Constraint("a head fits shared memory", head_fits),
        Constraint("no smaller tile covers the keys", keys_suit),
        Constraint("all warpgroups have queries", queries_suit),
    ),
    static_shared_bytes=static_shared_bytes,
    supports=lambda p: p.dtype == "float32",
    has_room=has_room,
    start=start,
)
