"""attention: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from tilewright.kernels.attention.layout import OPTIONAL_AXES, has_mask, posed_by, shape_of, strides_of
from tilewright.kernels.attention.reference import attention_reference
from tilewright.kernels.attention.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.kernel import Kernel, Launch, Option, Scalar, Tensor, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, powers_of_two

MOST_DEPTH = 128
DEPTH_STEP = 8
HELD_GROUPS = 16  # of four numbers, of Q and of O each, by one thread


def fault(p: Problem) -> tuple[str, str] | None:
    """The depth that no variant has."""
    depth = p.shape["depth"]
    if DEPTH_STEP <= depth <= MOST_DEPTH and depth % DEPTH_STEP == 0:
        return None
    return "depth", f"must be a multiple of {DEPTH_STEP} from {DEPTH_STEP} to {MOST_DEPTH}"


def heads(p: Problem) -> int:
    """Heads of the whole batch."""
    return p.shape["batch"] * p.shape["heads"]


def pairs(p: Problem) -> int:
    """Queries and keys that go together, of a head."""
    queries, keys = p.shape["queries"], p.shape["keys"]
    if p.options["mask"] != "causal":
        return queries * keys
    both = min(queries, keys)
    return both * (both + 1) // 2 + (queries - both) * keys


def flops(p: Problem) -> int:
    """4 depth for each pair of a query and a key that counts: a product and an addition, twice. Softmax is left out."""
    return 4 * heads(p) * pairs(p) * p.shape["depth"]


def bytes_moved(p: Problem) -> int:
    """Read Q, K and V once, and M where it counts, as often as it is there; write O once."""
    rows = heads(p) * p.shape["queries"] * 2 + p.shape["batch"] * p.shape["kv_heads"] * p.shape["keys"] * 2
    mask = 0
    if has_mask(p):
        sizes = (p.shape["batch"], p.shape["heads"], p.shape["queries"], p.shape["keys"])
        own = (n for n, stride in zip(sizes, strides_of("m", p), strict=True) if stride)
        mask = math.prod(own)
    return (rows * p.shape["depth"] + mask) * p.item_bytes


def launch_tiled(c: Values, p: Problem) -> Launch:
    """A launch of a block for each tile of queries of a head."""
    return Launch((-(-p.shape["queries"] // c.TILE_Q) * heads(p), 1, 1), (c.LANES * c.TILE_Q, 1, 1))


def shared_bytes_tiled(c: Values, p: Problem) -> int:
    """Bytes of a tile of K and one of V."""
    return 2 * c.TILE_K * p.shape["depth"] * p.item_bytes


def registers_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread's part of a row of Q and of O fits its registers."""
    return -(-p.shape["depth"] // (4 * c.LANES)) * (p.item_bytes // 4) <= HELD_GROUPS


def lanes_work(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half the lanes, with four numbers each, would not cover a row."""
    return LANES.values[0] == c.LANES or p.shape["depth"] > 2 * c.LANES


def start_tiled(p: Problem, _d: Limits) -> dict[str, int]:
    """The start: no more queries, or threads for a query, than there is work for."""
    queries, depth = min(p.shape["queries"], TILE_Q.default), p.shape["depth"]
    lanes = max((count for count in LANES.values if 2 * count < depth), default=LANES.values[0])
    tile = next(count for count in TILE_Q.values if count >= queries)
    return {"TILE_Q": tile, "LANES": min(lanes, LANES.default)}


TILE_Q = powers_of_two("TILE_Q", 8, 128, default=32, doc="queries of a block")
LANES = powers_of_two("LANES", 4, 32, default=8, doc="threads that share a query")

TILED = Variant(
    name="tiled",
    doc="Some threads a query, K and V by tiles in shared memory; any device.",
    source="tiled.cu",
    launch=launch_tiled,
    parameters=(
        TILE_Q,
        powers_of_two("TILE_K", 8, 64, default=32, doc="keys of a step"),
        LANES,
    ),
    constraints=(
        Constraint("a block is whole warps", lambda c, _p, _d: c.LANES * c.TILE_Q % 32 == 0),
        Constraint("a query's numbers fit the registers", registers_suffice),
        Constraint("half the lanes would not do", lanes_work),
        Constraint(
            "no tile of half the size covers the queries",
            lambda c, p, _d: TILE_Q.values[0] == c.TILE_Q or p.shape["queries"] > c.TILE_Q // 2,
        ),
    ),
    static_shared_bytes=shared_bytes_tiled,
    start=start_tiled,
)

KERNEL = Kernel(
    name="attention",
    doc="O = softmax(Q Kᵀ scale + mask) V for each head of a batch, without the scores in memory.",
    folder=Path(__file__).parent,
    axes=("batch", "heads", "queries", "keys", "depth"),
    row_axis="batch",
    optional_axes=OPTIONAL_AXES,
    posed_by=posed_by,
    dtypes=("float32", "float64"),
    options=(
        Option(
            "mask",
            ("none", "causal", "additive"),
            default="none",
            doc="all keys count, those up to the query, or M is added",
        ),
        Option("heads_inside", (False, True), default=False, doc="O is (batch, queries, heads, depth) in memory"),
    ),
    arguments=(
        Scalar("scale", lambda p: 1.0 / math.sqrt(p.shape["depth"])),
        Tensor("Q", "input", partial(shape_of, "q"), strides=partial(strides_of, "q")),
        Tensor("K", "input", partial(shape_of, "k"), strides=partial(strides_of, "k")),
        Tensor("V", "input", partial(shape_of, "v"), strides=partial(strides_of, "v")),
        Tensor("M", "input", partial(shape_of, "m"), strides=partial(strides_of, "m")),
        Tensor("O", "output", partial(shape_of, "o")),
    ),
    variants=(TILED, TENSOR3XFP16_SM90),
    flops=flops,
    bytes_moved=bytes_moved,
    reference=attention_reference,
    fault=fault,
    ranking_l2="warm",  # layers have just written Q, K and V, which lie in the L2 cache where they fit
    default_variant="tiled",
    example_shape={"batch": 8, "heads": 12, "queries": 512, "keys": 512, "depth": 64},
)
