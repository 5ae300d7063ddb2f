"""The variant `held`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

import itertools

from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.linear_quantized.reference import GROUP, bits, groups, has_zeros
from tilewright.kernels.linear_quantized.streamed_space import CLUSTERS_FROM, shares_are_even, steps
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration, Constraint, Values, choice
from tilewright.kernels.variant import always, rows_at_launch

FRAGMENT_ROWS, COLUMNS = 16, 2  # rows of W in an instruction; groups of 8 rows of X
FEWEST_ROWS, MOST_ROWS = 9, 16  # of X: with fewer `streamed` is faster
PRODUCT_BYTES = 512  # sums of an instruction, for each part of k
STEP_REGISTERS, OTHER_REGISTERS = 16 * COLUMNS, 76  # of a thread: for X of a step, and for all else
OWN_STEPS = (2, 4)  # steps of a warp: whole cache lines, whose scales are one copy
WARPS_K, WARPS_N, SPLITS, ROUNDS = (1, 2, 4, 5, 7, 8, 10, 14), tuple(range(1, 9)), (1, 2, 4, 8), tuple(range(1, 17))
START_WARPS, START_SPLITS = 8, (4, 2, 8, 1)
CLUSTERED = 15 / 16  # share of the multiprocessors that clusters can use, at least


def own_steps(c: Values, p: Problem) -> int:
    """Steps of 128 k that a warp multiplies."""
    return ceil_div(steps(p), c.SPLIT * c.WARPS_K)


def threads(c: Values) -> int:
    """Threads of a block."""
    return 32 * c.WARPS_K * c.WARPS_N


def blocks(c: Values, p: Problem) -> int:
    """Blocks of the grid, which are whole clusters."""
    return ceil_div(ceil_div(p.shape["n"], FRAGMENT_ROWS), c.WARPS_N * c.ROUNDS) * c.SPLIT


def stage_bytes(c: Values, p: Problem) -> int:
    """Bytes of a warp's stage: 16 rows of W in its steps, and their scales, four bytes at least."""
    return FRAGMENT_ROWS * (own_steps(c, p) * GROUP // 2 + max(4, 2 * scales(c, p)))


def scales(c: Values, p: Problem) -> int:
    """Scales and zero points of a row in a warp's steps."""
    return (1 if groups(p) == 1 else own_steps(c, p)) * (2 if has_zeros(p) else 1)


def shared_bytes(c: Values, p: Problem) -> int:
    """Bytes of the sums that a block adds up over all parts of k, and of its warps' rings."""
    products = ceil_div(c.ROUNDS * c.WARPS_N * COLUMNS, c.SPLIT)
    return products * c.SPLIT * c.WARPS_K * PRODUCT_BYTES + c.WARPS_K * c.WARPS_N * c.DEPTH * stage_bytes(c, p)


def launch(c: Values, p: Problem) -> Launch:
    """A launch of clusters that compute WARPS_N * ROUNDS fragments and share k; along y are 16 rows of X each."""
    grid = (blocks(c, p), ceil_div(p.shape["m"], MOST_ROWS), 1)
    return Launch(grid, (threads(c), 1, 1), shared_bytes(c, p), overlaps=True)


def blocks_are_even(c: Values, p: Problem, d: Limits) -> bool:
    """Whether all blocks run at once, and multiprocessors have equal shares or a warp has only one fragment."""
    return shares_are_even(launch(c, p), FRAGMENT_ROWS * c.WARPS_N, c.ROUNDS, c.SPLIT, p, d)


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread can hold its share of X, by estimate."""
    held, whole = own_steps(c, p) * STEP_REGISTERS + OTHER_REGISTERS, ceil_div(threads(c), 128) * 128
    return held <= min(d.max_registers_per_thread, d.registers_per_multiprocessor // whole)  # as they are shared out


def is_feasible(values: dict[str, int], p: Problem, d: Limits) -> bool:
    """Whether the configuration fits the device and meets all constraints, at every size where the launch says it."""
    c = Configuration.of("held", values).values
    asked = [one for one in CONSTRAINTS if not (one.is_thrift and p.at_launch)]
    return shared_bytes(c, p) <= d.max_shared_bytes and all(one.holds(c, p, d) for one in asked)


def has_room(p: Problem, d: Limits) -> bool:
    """Whether some configuration is feasible."""
    shares = [(s, w) for s, w in itertools.product(SPLITS, WARPS_K) if any(o * s * w == steps(p) for o in OWN_STEPS)]
    return any(
        is_feasible({"WARPS_K": warps_k, "WARPS_N": warps_n, "DEPTH": 2, "SPLIT": split, "ROUNDS": rounds}, p, d)
        for (split, warps_k), warps_n, rounds in itertools.product(shares, WARPS_N, ROUNDS)
    )


def start(p: Problem, d: Limits) -> dict[str, int]:
    """The start: eight warps, or more if more share k, in clusters of four blocks if k divides so; a tile a cluster."""
    for split, own in itertools.product(START_SPLITS, reversed(OWN_STEPS)):
        warps_k = steps(p) // (own * split)
        if warps_k not in WARPS_K or warps_k * own * split != steps(p):
            continue
        warps_n = max(1, START_WARPS // warps_k)
        clusters = int(d.multiprocessors * (CLUSTERED if split > 2 else 1)) // split
        rounds = max(1, ceil_div(ceil_div(p.shape["n"], FRAGMENT_ROWS), warps_n * max(1, clusters)))
        depth = 3 if rounds >= 3 else 2
        values = {"WARPS_K": warps_k, "WARPS_N": warps_n, "DEPTH": depth, "SPLIT": split, "ROUNDS": rounds}
        if rounds in ROUNDS and is_feasible(values, p, d):
            return values
    return {}


CONSTRAINTS = (
    Constraint("a block has 4 to 16 warps", lambda c, _p, _d: 4 <= c.WARPS_K * c.WARPS_N <= 16),
    Constraint(
        "all warps have as many whole lines",
        lambda c, p, _d: any(own * c.SPLIT * c.WARPS_K == steps(p) for own in OWN_STEPS),
    ),
    Constraint("every stage under way has weights", lambda c, _p, _d: c.DEPTH == 2 or c.ROUNDS >= c.DEPTH),
    Constraint("registers suffice by estimate", registers_suffice),
    Constraint("blocks share the device evenly", blocks_are_even, is_thrift=True),
)
HELD = Variant(
    name="held",
    doc="Tensor cores: a warp holds its share of X in registers and loads W through its own ring.",
    source="held.cu",
    launch=launch,
    parameters=(
        choice("WARPS_K", *WARPS_K, default=2, doc="warps of a block that share k"),
        choice("WARPS_N", *WARPS_N, default=4, doc="warps of a block side by side"),
        choice("DEPTH", 2, 3, 4, doc="pipeline stages of a warp: one is multiplied while the others are loaded"),
        choice("SPLIT", *SPLITS, default=8, doc="blocks of a cluster, which share k"),
        choice("ROUNDS", *ROUNDS, doc="fragments of 16 rows of W that a warp computes"),
    ),
    constraints=CONSTRAINTS,
    min_compute_capability=CLUSTERS_FROM,
    requires=frozenset({"ptx"}),
    supports=lambda p: bits(p) == 4 and (bool(p.at_launch) or FEWEST_ROWS <= p.shape["m"] <= MOST_ROWS),
    takes_size=rows_at_launch,
    is_batch_invariant=always,
    has_room=has_room,
    start=start,
)
