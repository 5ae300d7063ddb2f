"""linear_quantized: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel, Launch, Option, Tensor, Variant, ceil_div
from tilewright.kernels.linear_quantized.held_space import HELD
from tilewright.kernels.linear_quantized.reference import (
    GROUP,
    MOST_ROWS,
    bits,
    linear_quantized_reference,
    random_weights,
    scales_shape,
    weights_shape,
)
from tilewright.kernels.linear_quantized.streamed_sm90_space import STREAMED_SM90
from tilewright.kernels.linear_quantized.streamed_space import STREAMED
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two
from tilewright.kernels.variant import always, rows_at_launch

FRAGMENT_ROWS, FRAGMENT_COLUMNS = 16, 8  # of W and of X, in a product of a warp
MOST_HELD = 160  # registers for sums and weights under way; with addresses and X they suffice for 255
RESERVED_REGISTERS = 48
SCALE_REGISTERS, STEP_TERMS = 2, 16  # of a row's scale and zero; of a step of X, of eight of its rows
MOST_COLUMNS_HELD = 2  # eights of rows of X, up to which it is read ahead
COLUMNS_AT_LAUNCH = 2


def fault(p: Problem) -> tuple[str, str] | None:
    """The axis that is too large or does not divide, and why."""
    if p.shape["m"] > MOST_ROWS:
        return "m", f"must be at most {MOST_ROWS}; for more rows, dequantise the weights and use linear"
    if p.shape["k"] % GROUP:
        return "k", f"must be a multiple of {GROUP}, the length of a group"
    return None


def columns(p: Problem) -> int:
    """Rows of X of a `tensor` block in eights: all of them, unless their number comes with the launch."""
    return COLUMNS_AT_LAUNCH if p.at_launch else ceil_div(p.shape["m"], FRAGMENT_COLUMNS)


def launch_rows(c: Values, p: Problem) -> Launch:
    """A launch of WARPS_PER_ROW warps for each row of W along x; along y, COLUMNS rows of X each."""
    grid = (ceil_div(p.shape["n"], c.ROWS_PER_BLOCK), ceil_div(p.shape["m"], c.COLUMNS), 1)
    return Launch(grid, (32 * c.WARPS_PER_ROW * c.ROWS_PER_BLOCK, 1, 1))


def loads(p: Problem) -> int:
    """Loads of 16 bytes of a row of W."""
    return p.shape["k"] * bits(p) // 128


def threads_have_loads(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a row has loads for all threads and all that are in flight; one warp and one load are always allowed."""
    threads = 32 * c.WARPS_PER_ROW
    return (threads == 32 or threads <= loads(p)) and (c.UNROLL == 1 or threads * c.UNROLL <= loads(p))


ROWS = Variant(
    name="rows",
    starts_search=False,
    doc="CUDA cores: one or more warps for a row of W, each load used for a few rows of X.",
    source="rows.cu",
    launch=launch_rows,
    parameters=(
        powers_of_two("WARPS_PER_ROW", 1, 16, default=2, doc="warps that share a row of W"),
        powers_of_two("ROWS_PER_BLOCK", 1, 16, default=2, doc="rows of W that a block computes"),
        powers_of_two("COLUMNS", 1, 8, default=1, doc="rows of X for which a load of weights is used"),
        powers_of_two("UNROLL", 1, 8, default=2, doc="loads of 16 bytes that a thread has in flight"),
    ),
    constraints=(
        Constraint(
            "no block of half as many rows covers them", lambda c, p, _d: 2 * max(1, p.shape["n"]) > c.ROWS_PER_BLOCK
        ),
        Constraint(
            "half the columns would not do",
            lambda c, p, _d: c.COLUMNS == 1 or p.shape["m"] > c.COLUMNS // 2,
            is_thrift=True,
        ),
        Constraint("every thread and load in flight has weights", threads_have_loads),
    ),
    static_shared_bytes=lambda c, _p: 4 * c.ROWS_PER_BLOCK * c.WARPS_PER_ROW * c.COLUMNS,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)


def launch_tensor(c: Values, p: Problem) -> Launch:
    """A launch of a block for 16 * ROWS rows of W, its warps sharing k; X's rows go along y if they are many."""
    rows_w, rows_x = FRAGMENT_ROWS * c.ROWS, FRAGMENT_COLUMNS * columns(p)
    grid = (ceil_div(p.shape["n"], rows_w), ceil_div(p.shape["m"], rows_x), 1)
    return Launch(grid, (32 * c.WARPS, 1, 1), shared_bytes_tensor(c, p))


def lane_sums(c: Values, p: Problem) -> int:
    """Sums that a thread holds."""
    return c.ROWS * columns(p) * 4


def shared_bytes_tensor(c: Values, p: Problem) -> int:
    """Bytes of shared memory in which every warp leaves its sums at the end."""
    return 4 * 32 * c.WARPS * lane_sums(c, p)


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether sums, those of a group, and the weights in flight fit a thread, by estimate."""
    held_ahead = columns(p) if columns(p) <= MOST_COLUMNS_HELD else 0
    step = 2 * c.ROWS * (bits(p) + SCALE_REGISTERS) + STEP_TERMS * held_ahead
    held = 2 * lane_sums(c, p) + c.UNROLL * step
    threads = 32 * c.WARPS
    return held <= MOST_HELD and held + RESERVED_REGISTERS <= d.registers_per_multiprocessor // threads


TENSOR = Variant(
    name="tensor",
    doc="Tensor cores: weights are converted to 16 bits in registers; warps share k.",
    source="tensor.cu",
    launch=launch_tensor,
    parameters=(
        choice("WARPS", 2, 4, 8, 16, default=4, doc="warps of a block, which share k"),
        choice("ROWS", 1, 2, 4, doc="groups of 16 rows of W that a block computes"),
        choice("UNROLL", 1, 2, 4, default=2, doc="steps of 128 k in flight at a time"),
    ),
    constraints=(
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint(
            "every warp and step in flight has weights",
            lambda c, p, _d: c.WARPS == 2 or max(2, p.shape["k"] // GROUP) >= c.WARPS * c.UNROLL,
        ),
        Constraint(
            "no block of half as many rows covers them",
            lambda c, p, _d: c.ROWS == 1 or 2 * p.shape["n"] > FRAGMENT_ROWS * c.ROWS,
        ),
    ),
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)


def flops(p: Problem) -> int:
    """2 m n k, as linear counts them; what dequantising takes is left out."""
    return 2 * p.shape["m"] * p.shape["n"] * p.shape["k"]


def bytes_moved(p: Problem) -> int:
    """Read W, its scales and X once, write Y once."""
    scale_count = 1
    for size in scales_shape(p):
        scale_count *= size
    m, n, k = (p.shape[axis] for axis in "mnk")
    return n * k * bits(p) // 8 + (scale_count + m * k + m * n) * p.item_bytes


KERNEL = Kernel(
    name="linear_quantized",
    doc="Y = X dequantised(W)ᵀ for few rows: X (m, k), W (n, k) whole numbers of 8 or 4 bits with scales S, Y (m, n).",
    folder=Path(__file__).parent,
    axes=("m", "n", "k"),
    launch_axes=("m",),
    largest_at_launch={"m": MOST_ROWS},
    row_axis="m",
    dtypes=HALF,
    options=(
        Option(
            "weights",
            ("int8", "int4", "int4_zeros"),
            default="int8",
            doc="whole numbers that W holds; int4: minus 8, two in a byte; int4_zeros: minus the group's zero point",
        ),
        Option(
            "group", ("128", "row"), default="128", doc="weights of a row that share a scale: 128 neighbours, or all"
        ),
    ),
    arguments=(
        Tensor("X", "input", lambda p: (p.shape["m"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("W", "input", weights_shape, dtype=lambda p: "int8" if bits(p) == 8 else "uint8"),
        Tensor("S", "input", scales_shape),
        Tensor("Y", "output", lambda p: (p.shape["m"], p.shape["n"])),
    ),
    variants=(ROWS, TENSOR, STREAMED, STREAMED_SM90, HELD),
    flops=flops,
    bytes_moved=bytes_moved,
    inputs=random_weights,
    reference=linear_quantized_reference,
    ranking_l2="cold",  # a model's weights do not fit the cache
    default_variant="tensor",
    example_shape={"m": 1, "n": 4096, "k": 4096},
    fault=fault,
)
