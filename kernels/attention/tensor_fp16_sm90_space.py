"""attention's variant of FP16 parts on the tensor cores of compute capability 9.0: two launches and their workspace."""

from __future__ import annotations

from tilewright.kernels.kernel import Launch, Preparation
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice
from tilewright.kernels.variant import hopper_variant

WARPGROUP_QUERIES = 64
MOST_SHARED = 227 * 1024 - 4096  # of a block, less alignment and what is declared beside
ALIGNMENT = 1024  # of Q and the ring
MOST_STAGES = 8
PACK_THREADS = 256
WORKSPACE_PART = 32  # of the device's memory
KEPT_SUMS = {2: 192, 3: 128}  # by warpgroups: depth and keys that a thread's registers hold twice over; H200, no spills


def tiles(extent: int, tile: int) -> int:
    """How many tiles cover the extent."""
    return -(-extent // tile)


def panels(p: Problem) -> int:
    """Pieces of 64 numbers of a row, 128 bytes in FP16."""
    return tiles(p.shape["depth"], 64)


def stage_bytes(c: Values, p: Problem) -> int:
    """Bytes that a buffer of the ring has: both FP16 parts of a tile of K or V, and 1 KB for its scales and flags."""
    return c.TILE_KEYS * 256 * panels(p) + 1024


def queries_bytes(c: Values, p: Problem) -> int:
    """Bytes of two parts of a block's queries."""
    return c.MULTIPLIERS * WARPGROUP_QUERIES * 256 * panels(p)


def stages(c: Values, p: Problem) -> int:
    """How many buffers for a tile fit in shared memory."""
    return min(MOST_STAGES, (MOST_SHARED - queries_bytes(c, p)) // stage_bytes(c, p))


def kv_heads(p: Problem) -> int:
    """Heads of K and V of the whole batch."""
    return p.shape["batch"] * p.shape["kv_heads"]


def launch(c: Values, p: Problem) -> Launch:
    """A launch of BLOCKS blocks, or of one for each tile of queries where there are fewer tiles."""
    items = tiles(p.shape["queries"], c.MULTIPLIERS * WARPGROUP_QUERIES) * p.shape["batch"] * p.shape["heads"]
    blocks = min(c.BLOCKS, items)
    shared = queries_bytes(c, p) + stages(c, p) * stage_bytes(c, p) + ALIGNMENT
    return Launch((blocks, 1, 1), (128 * (c.MULTIPLIERS + 1), 1, 1), shared, overlaps=True)


def launch_pack(c: Values, p: Problem) -> Launch:
    """A launch of one block for each tile of K and each tile of V."""
    return Launch((2 * tiles(p.shape["keys"], c.TILE_KEYS) * kv_heads(p), 1, 1), (PACK_THREADS, 1, 1), overlaps=True)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of two barriers a stage and one a warpgroup, padded to 16, and of a scale for each query."""
    return 16 * (max(stages(c, p), 0) + tiles(c.MULTIPLIERS, 2)) + c.MULTIPLIERS * WARPGROUP_QUERIES * 4


def workspace_bytes(c: Values, p: Problem) -> int:
    """Bytes of all tiles of K and V in two parts."""
    return kv_heads(p) * tiles(p.shape["keys"], c.TILE_KEYS) * 2 * stage_bytes(c, p)


def sums_fit(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether scores, shares, and the result and its next part fit the registers."""
    return p.shape["depth"] + c.TILE_KEYS <= KEPT_SUMS[c.MULTIPLIERS]


def stages_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether the buffers hold a tile of K, a tile of V, and the next one."""
    return stages(c, p) >= 3


def keys_suit(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no smaller tile covers the keys."""
    smaller = [tile for tile in TILE_KEYS.values if tile < c.TILE_KEYS]
    return not smaller or p.shape["keys"] > smaller[-1]


def queries_suit(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether all warpgroups have queries, if some number of warpgroups allows that."""
    return p.shape["queries"] > WARPGROUP_QUERIES * (c.MULTIPLIERS - 1) or min(KEPT_SUMS) == c.MULTIPLIERS


def blocks_are_multiprocessors(c: Values, _p: Problem, d: Limits) -> bool:
    """Whether BLOCKS is, of its values, the one nearest to the device's multiprocessors."""
    return min(BLOCKS.values, key=lambda count: abs(count - d.multiprocessors)) == c.BLOCKS


def start(p: Problem, _d: Limits) -> dict[str, int]:
    """The start: no more keys a step than there are; heads in turns where tiles of queries have unequal keys."""
    heads, keys = p.shape["batch"] * p.shape["heads"], p.shape["keys"]
    values = {"TILE_KEYS": next(count for count in TILE_KEYS.values if count >= min(keys, TILE_KEYS.default))}
    if p.options["mask"] == "causal" and p.shape["queries"] > MULTIPLIERS.default * WARPGROUP_QUERIES:
        most = HEADS_TOGETHER.values[-1]
        values["HEADS_TOGETHER"] = next((count for count in HEADS_TOGETHER.values if count >= heads), most)
    return values


def order_matters(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether tiles of queries and heads can be taken in another order than the default's."""
    heads = p.shape["batch"] * p.shape["heads"]
    has_tiles = p.shape["queries"] > c.MULTIPLIERS * WARPGROUP_QUERIES
    smaller = [count for count in HEADS_TOGETHER.values if count < c.HEADS_TOGETHER]
    return HEADS_TOGETHER.default == c.HEADS_TOGETHER or (has_tiles and heads > smaller[-1])


def has_room(p: Problem, d: Limits) -> bool:
    """Whether the ring, the workspace and the grids fit the device."""
    bytes_ = kv_heads(p) * tiles(p.shape["keys"], 64) * 2 * (64 * 256 * panels(p) + 1024)
    return d.max_shared_bytes >= MOST_SHARED + 4096 and bytes_ <= d.memory_bytes // WORKSPACE_PART


TILE_KEYS = choice("TILE_KEYS", 32, 48, 64, 80, 96, 112, 128, default=64, doc="keys of a step")
MULTIPLIERS = choice("MULTIPLIERS", 2, 3, default=2, doc="warpgroups of a block that multiply, 64 queries each")
BLOCKS = choice("BLOCKS", 78, 114, 132, default=132, doc="blocks, one for each multiprocessor: H20, H100 PCIe, H200")
HEADS_TOGETHER = choice("HEADS_TOGETHER", 8, 32, 1024, default=8, doc="heads whose tiles of queries take turns")

TENSOR3XFP16_SM90 = hopper_variant(
    name="tensor3xfp16_sm90",
    doc="FP32 accuracy by FP16 parts on Hopper's wgmma, in two launches: the first packs K and V.",
    source="tensor_fp16_sm90.cu",
    launch=launch,
    before=(Preparation("pack", launch_pack),),
    parameters=(BLOCKS, TILE_KEYS, MULTIPLIERS, HEADS_TOGETHER),
    constraints=(
        Constraint("blocks are as many as multiprocessors", blocks_are_multiprocessors),
        Constraint("sums fit the registers", sums_fit),
        Constraint("the ring has three stages", stages_suffice),
        Constraint("no smaller tile covers the keys", keys_suit),
        Constraint("all warpgroups have queries", queries_suit),
        Constraint("another order differs", order_matters),
    ),
    static_shared_bytes=static_shared_bytes,
    workspace_bytes=workspace_bytes,
    workspace_share=WORKSPACE_PART,
    supports=lambda p: p.dtype == "float32",
    has_room=has_room,
    start=start,
)
