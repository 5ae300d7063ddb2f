"""The variant `streamed_sm90`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.gemm.tensor_half_sm90_space import ALIGNMENT, LINE_BYTES, MULTIPROCESSOR_BYTES, OTHER_BYTES
from tilewright.kernels.kernel import Launch, TensorMap, ceil_div
from tilewright.kernels.linear_quantized.reference import GROUP, MOST_ROWS, bits, groups, has_zeros
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice
from tilewright.kernels.variant import always, hopper_variant, rows_at_launch

BLOCK_ROWS, WARPGROUP = 64, 128  # rows of W in a product, threads that make one
MOST_COLUMNS = 64
FEWEST_ROWS = 9  # of X: with fewer `streamed` is faster, which has 8 columns in a product
MOST_WARPGROUPS = 4
MOST_DEPTH = 32  # more than fit
OTHER_REGISTERS = 64  # of a thread, beside its sums: weights on their way, addresses


def columns(p: Problem) -> int:
    """Rows of X with zeros below them: as many as a product has columns."""
    return next((count for count in (16, 32) if count >= rows(p)), MOST_COLUMNS)


def rows(p: Problem) -> int:
    """Rows of X that a block has room for: all possible ones, where their number comes with the launch."""
    return MOST_ROWS if p.at_launch else p.shape["m"]


def step_k(p: Problem) -> int:
    """Weights of a row in a step: 128 bytes."""
    return LINE_BYTES * 8 // bits(p)


def steps(p: Problem) -> int:
    """Steps of a whole tile."""
    return ceil_div(p.shape["k"], step_k(p))


def tile_rows(c: Values) -> int:
    """Rows of W of a tile."""
    return BLOCK_ROWS * c.BLOCKS


def threads(c: Values) -> int:
    """Threads of a block: warpgroups that multiply, a warp that loads."""
    return WARPGROUP * c.BLOCKS * c.PARTS + 32


def stage_bytes(c: Values, p: Problem) -> int:
    """A step of W and of X."""
    return (tile_rows(c) + step_k(p) // 64 * columns(p)) * LINE_BYTES


def sums_bytes(c: Values, p: Problem) -> int:
    """Bytes of the sums of a block's rows at the end, over all parts of a tile."""
    return c.SPLIT * c.PARTS * rows(p) * (ceil_div(tile_rows(c), 4 * c.SPLIT) * 4 + 4) * 4


def beside_bytes(c: Values, p: Problem) -> int:
    """Bytes of these sums that lie beside the ring because they come from other blocks."""
    return sums_bytes(c, p) if c.SPLIT > 1 else 0


def grid_bytes(c: Values, p: Problem) -> int:
    """Bytes of scales and zero points for the tile's rows and the block's share of k: an odd number of words a row."""
    own = 1 if groups(p) == 1 else ceil_div(steps(p), c.SPLIT) * (step_k(p) // GROUP)
    return tile_rows(c) * 4 * (ceil_div(own * (1 + has_zeros(p)), 2) | 1)


def most_stages(c: Values, p: Problem) -> int:
    """Buffers of a step in shared memory: as many as fit, or as a block has steps."""
    room = MULTIPROCESSOR_BYTES // c.RESIDENT - OTHER_BYTES - beside_bytes(c, p) - grid_bytes(c, p)
    fit = max(room, 0) // stage_bytes(c, p)
    return min(fit, max(ceil_div(steps(p), c.SPLIT), c.PARTS, 2))


def stages(c: Values, p: Problem) -> int:
    """Stages of the ring that are used."""
    return min(most_stages(c, p), c.DEPTH)


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid: whole clusters."""
    return ceil_div(p.shape["n"], tile_rows(c)) * c.SPLIT


def launch(c: Values, p: Problem) -> Launch:
    """A launch of all blocks along x."""
    shared_bytes = stages(c, p) * stage_bytes(c, p) + beside_bytes(c, p) + grid_bytes(c, p) + ALIGNMENT
    return Launch((blocks(c, p), 1, 1), (threads(c), 1, 1), shared_bytes, overlaps=c.SPLIT == 1)


def static_shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the barriers, two for each stage."""
    return 16 * stages(c, p)


def tensor_maps(c: Values, p: Problem) -> tuple[TensorMap, ...]:
    """Maps of W by steps, and of X by 64 k."""
    return (TensorMap("W", (1, tile_rows(c), LINE_BYTES)), TensorMap("X", (1, columns(p), LINE_BYTES // 2)))


def ring_is_deep_enough(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether loads run ahead of products, and a tile's sums fit into the ring.

    A warpgroup waits for its next step before it releases the one before.
    """
    held = stages(c, p)
    return (held > c.PARTS or held >= ceil_div(steps(p), c.SPLIT)) and held * stage_bytes(c, p) >= sums_bytes(
        c, p
    ) - beside_bytes(c, p)


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread can hold two sums of each product and its weights, beside other blocks."""
    whole = ceil_div(threads(c), WARPGROUP) * WARPGROUP * c.RESIDENT  # as registers are shared out
    return columns(p) + OTHER_REGISTERS <= min(d.max_registers_per_thread, d.registers_per_multiprocessor // whole)


def blocks_run_at_once(c: Values, p: Problem, d: Limits) -> bool:
    """Whether blocks beyond the number of tiles all run at once, and there are blocks for all places."""
    places = c.RESIDENT * d.multiprocessors
    return (c.SPLIT == 1 or blocks(c, p) <= places) and (c.RESIDENT == 1 or blocks(c, p) > places - d.multiprocessors)


def start(p: Problem, d: Limits) -> dict[str, int]:
    """Values to start from: as many warpgroups as registers admit, with rows of W of their own, or sharing k."""
    is_narrow, tiles = columns(p) < MOST_COLUMNS, ceil_div(p.shape["n"], BLOCK_ROWS)
    if tiles > d.multiprocessors:
        return {"BLOCKS": 2, "PARTS": min(2, steps(p))} if is_narrow else {"RESIDENT": 2}
    split = next((s for s in (4, 2) if tiles * s <= d.multiprocessors and steps(p) >= 4 * s), 1)
    return {"PARTS": min(4 if is_narrow else 2, steps(p)), "SPLIT": split}


STREAMED_SM90 = hopper_variant(
    name="streamed_sm90",
    doc="Hopper's wgmma: TMA loads W and X into a ring, weights are multiplied from registers.",
    source="streamed_sm90.cu",
    launch=launch,
    parameters=(
        choice("BLOCKS", 1, 2, default=1, doc="groups of 64 rows of W in a tile"),
        choice("PARTS", 1, 2, 3, 4, default=1, doc="warpgroups that share k; each has all rows of a block"),
        choice("SPLIT", 1, 2, 4, 8, default=1, doc="blocks of a cluster that share k"),
        choice("RESIDENT", 1, 2, 3, default=1, doc="blocks that share a multiprocessor's shared memory"),
        choice("DEPTH", 4, 8, MOST_DEPTH, default=MOST_DEPTH, doc="steps that a block has in flight, at most"),
    ),
    constraints=(
        Constraint("a block has few warpgroups", lambda c, _p, _d: c.BLOCKS * c.PARTS <= MOST_WARPGROUPS),
        Constraint("stages fit shared memory", ring_is_deep_enough),
        Constraint(
            "a bound makes the ring shorter", lambda c, p, _d: c.DEPTH == MOST_DEPTH or most_stages(c, p) > c.DEPTH
        ),
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint(
            "every warpgroup has steps", lambda c, p, _d: c.SPLIT * c.PARTS == 1 or steps(p) >= c.SPLIT * c.PARTS
        ),
        Constraint("blocks run at once", blocks_run_at_once),
        Constraint("tiles have rows", lambda c, p, _d: c.BLOCKS == 1 or p.shape["n"] > tile_rows(c) // 2),
    ),
    static_shared_bytes=static_shared_bytes,
    tensor_maps=tensor_maps,
    supports=lambda p: bool(p.at_launch) or p.shape["m"] >= FEWEST_ROWS,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
    start=start,
)
