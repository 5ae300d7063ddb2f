"""classifier: its arguments, work counts, and its variant's search space."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.classifier.reference import classifier_reference
from tilewright.kernels.kernel import Kernel, Launch, Tensor, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, powers_of_two

WARP = 32
OTHER_REGISTERS = 32  # addresses and counters beside the numbers held; sm_90, NVRTC 13.0: 20 to 30
VECTOR_BYTES = 16  # the widest access of one thread to memory (CUDA C++ Programming Guide, "Device Memory Accesses")
LONGEST_BYTES = 4096
"""A layer's inputs for one row take at most this: a lane then holds 32 registers of it, and as many of the weights."""

MOST_SHARED_BYTES = 32 * 1024
"""Shared memory that a row takes at most between the layers and behind them: less than every device's 48 KiB."""


def held(c: Values, p: Problem) -> int:
    """Numbers that a lane holds of the longer row of inputs."""
    lengths = (p.shape["k"], p.shape["h"])
    widths = [c.VECTOR_WIDTH if length % c.VECTOR_WIDTH == 0 else 1 for length in lengths]
    return max(-(-length // (WARP * width)) * width for length, width in zip(lengths, widths, strict=True))


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a lane's shares of the rows, of the weights, and its sums fit its registers, by estimate."""
    numbers = (c.ROWS + c.OUTPUTS) * held(c, p) + c.ROWS * c.OUTPUTS
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // (WARP * c.WARPS))
    return numbers * p.item_bytes // 4 + OTHER_REGISTERS <= available


def vector_is_used(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether one of the layers reads vectors of that width, and they are no wider than an access."""
    divides = p.shape["k"] % c.VECTOR_WIDTH == 0 or p.shape["h"] % c.VECTOR_WIDTH == 0
    return divides and c.VECTOR_WIDTH * p.item_bytes <= VECTOR_BYTES


def rows_exist(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many rows a block would leave more than one block."""
    return c.ROWS == 1 or p.shape["m"] > c.ROWS // 2


def is_small(p: Problem) -> bool:
    """Whether rows of inputs fit a warp's registers, and a row of results shared memory."""
    longest = max(p.shape["k"], p.shape["h"]) * p.item_bytes
    return longest <= LONGEST_BYTES and (p.shape["h"] + p.shape["n"]) * p.item_bytes <= MOST_SHARED_BYTES


ROWS = Variant(
    name="rows",
    doc="A block takes some rows through both layers: nothing between them leaves shared memory; for short layers.",
    source="rows.cu",
    launch=lambda c, p: Launch((-(-p.shape["m"] // c.ROWS), 1, 1), (WARP * c.WARPS, 1, 1)),
    parameters=(
        powers_of_two("ROWS", 1, 8, default=2, doc="rows of X that a block takes"),
        powers_of_two("WARPS", 1, 32, default=8, doc="warps of a block"),
        powers_of_two("OUTPUTS", 1, 8, default=2, doc="outputs of a layer that a warp computes at a time"),
        powers_of_two("VECTOR_WIDTH", 1, 4, default=4, doc="elements in one access to memory, where rows divide so"),
    ),
    constraints=(
        Constraint("every sum ends in a lane of its own", lambda c, _p, _d: c.ROWS * c.OUTPUTS <= WARP),
        Constraint("a layer reads vectors of at most 16 bytes", vector_is_used),
        Constraint("no block of half as many rows takes them all", rows_exist),
        Constraint(
            "half the warps would not do",
            lambda c, p, _d: c.WARPS == 1 or max(p.shape["h"], p.shape["n"]) > c.WARPS // 2 * c.OUTPUTS,
        ),
        Constraint("registers suffice by estimate", registers_suffice),
    ),
    static_shared_bytes=lambda c, p: c.ROWS * (p.shape["h"] + p.shape["n"]) * p.item_bytes,
    supports=is_small,
)


def flops(p: Problem) -> int:
    """2 m h (k + n): the products of both layers, as linear counts them. Activation and softmax are left out."""
    return 2 * p.shape["m"] * p.shape["h"] * (p.shape["k"] + p.shape["n"])


def bytes_moved(p: Problem) -> int:
    """Read X and both layers' weights once, write Y once."""
    m, k, h, n = (p.shape[axis] for axis in "mkhn")
    return (m * (k + n) + h * (k + 1) + n * (h + 1)) * p.item_bytes


KERNEL = Kernel(
    name="classifier",
    doc="Y = softmax(relu(X W1ᵀ + b1) W2ᵀ + b2) in one launch: X (m, k), W1 (h, k), W2 (n, h), Y (m, n), row-major.",
    folder=Path(__file__).parent,
    axes=("m", "k", "h", "n"),
    row_axis="m",
    dtypes=("float32", "float64"),
    options=(),
    arguments=(
        Tensor("X", "input", lambda p: (p.shape["m"], p.shape["k"]), summed=lambda _p: 1),
        Tensor("W1", "input", lambda p: (p.shape["h"], p.shape["k"])),
        Tensor("b1", "input", lambda p: (p.shape["h"],)),
        Tensor("W2", "input", lambda p: (p.shape["n"], p.shape["h"])),
        Tensor("b2", "input", lambda p: (p.shape["n"],)),
        Tensor("Y", "output", lambda p: (p.shape["m"], p.shape["n"])),
    ),
    variants=(ROWS,),
    flops=flops,
    bytes_moved=bytes_moved,
    reference=classifier_reference,
    ranking_l2="warm",  # the layer before has just written X, and the weights are used batch after batch
    default_variant="rows",
    example_shape={"m": 256, "k": 100, "h": 100, "n": 10},
)
