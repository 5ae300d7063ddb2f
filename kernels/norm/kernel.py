"""The declaration of a normalisation of rows, its variants, and which configurations are worth a trial."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Kernel, Launch, Scalar, Tensor, Variant, shape_of
from tilewright.kernels.norm.reference import norm_inputs, norm_reference
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, powers_of_two
from tilewright.kernels.variant import always, rows_at_launch

EPS = 1e-5
"""The epsilon of tuning, and of a launch that names none: PyTorch's default for layer_norm."""


def norm_kernel(name: str, doc: str, folder: Path, *, is_centred: bool, has_residual: bool) -> Kernel:
    """The kernel of that name: `is_centred` subtracts the mean and adds b, `has_residual` adds R and stores the sum."""
    row_by_row, of_column = shape_of("m", "n"), shape_of("n")

    def flops(p: Problem) -> int:
        """A square, an addition and two products an element; centred two subtractions and an addition more."""
        return (4 + 3 * is_centred + has_residual) * p.shape["m"] * p.shape["n"]

    def bytes_moved(p: Problem) -> int:
        """Read X, w and b, write Y; with a residual, read R and write S."""
        matrices, vectors = 4 if has_residual else 2, 2 if is_centred else 1
        return (matrices * p.shape["m"] + vectors) * p.shape["n"] * p.item_bytes

    return Kernel(
        name=name,
        doc=doc,
        folder=folder,
        axes=("m", "n"),
        launch_axes=("m",),
        row_axis="m",
        dtypes=("float32", "float64", *HALF),
        arguments=(
            Tensor("X", "input", row_by_row, normalised=True),
            *((Tensor("R", "input", row_by_row),) if has_residual else ()),
            Tensor("w", "input", of_column),
            *((Tensor("b", "input", of_column),) if is_centred else ()),
            Scalar("eps", lambda _p: EPS, dtype="float32", other=lambda _p: 1e-7),
            Tensor("Y", "output", row_by_row),
            *((Tensor("S", "output", row_by_row),) if has_residual else ()),
        ),
        variants=(HELD, WALK),
        flops=flops,
        bytes_moved=bytes_moved,
        reference=norm_reference,
        inputs=partial(norm_inputs, names=("X", "R") if has_residual else ("X",)),
        ranking_l2="warm",  # the layer before has just written X, which lies in the L2 cache where it fits
        default_variant="held",
        example_shape={"m": 4096, "n": 4096},
    )


WARP = 32
HELD_ELEMENTS = 32  # of a row, by one thread
OTHER_REGISTERS = 32  # addresses, indices, weights and sums beside the numbers held; sm_90, NVRTC 13.0: 16 to 30
VECTOR_BYTES = 16  # the widest access of one thread to memory (CUDA C++ Programming Guide, "Device Memory Accesses")


def threads_held(c: Values) -> int:
    """Threads of a block of `held`."""
    return c.THREADS_PER_ROW * c.ROWS


def launch_held(c: Values, p: Problem) -> Launch:
    """A launch of blocks with ROWS rows each."""
    return Launch((-(-p.shape["m"] // c.ROWS), 1, 1), (threads_held(c), 1, 1))


def launch_walk(c: Values, p: Problem) -> Launch:
    """A launch of one block for each row."""
    return Launch((p.shape["m"], 1, 1), (c.BLOCK, 1, 1))


def held(c: Values, p: Problem) -> int:
    """Elements of a row that a thread of `held` holds."""
    step = c.THREADS_PER_ROW * c.VECTOR_WIDTH
    return -(-p.shape["n"] // step) * c.VECTOR_WIDTH


def vector_fits(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether rows divide into vectors no wider than an access."""
    return p.shape["n"] % c.VECTOR_WIDTH == 0 and c.VECTOR_WIDTH * p.item_bytes <= VECTOR_BYTES


def row_is_held(c: Values, p: Problem, d: Limits) -> bool:
    """Whether a thread's part of the row fits its registers, by estimate."""
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // threads_held(c))
    numbers = held(c, p)
    return numbers <= HELD_ELEMENTS and numbers * p.sum_bytes // 4 + OTHER_REGISTERS <= available


def rows_exist(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether half as many rows a block would not cover all of them; one warp is always allowed."""
    return threads_held(c) == WARP or c.ROWS == 1 or p.shape["m"] > c.ROWS // 2


def columns_last(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a row has work for all threads; one warp is always allowed."""
    return c.BLOCK == WARP or p.shape["n"] > c.BLOCK * c.VECTOR_WIDTH // 2


VECTOR_FITS = Constraint("rows divide into vectors of at most 16 bytes", vector_fits)
VECTOR_WIDTH = powers_of_two("VECTOR_WIDTH", 1, 8, default=4, doc="elements in one access to memory")

HELD = Variant(
    name="held",
    doc="A row in the registers of a part of a block, or of all of it: one read.",
    source="held.cu",
    launch=launch_held,
    parameters=(
        powers_of_two("THREADS_PER_ROW", 1, 1024, default=256, doc="threads that share a row"),
        powers_of_two("ROWS", 1, 32, default=1, doc="rows of a block"),
        VECTOR_WIDTH,
    ),
    constraints=(
        VECTOR_FITS,
        Constraint("a block is whole warps", lambda c, _p, _d: threads_held(c) % WARP == 0),
        Constraint(
            "half the threads would not do in one access",
            lambda c, p, _d: c.THREADS_PER_ROW == 1 or p.shape["n"] > c.THREADS_PER_ROW // 2 * c.VECTOR_WIDTH,
        ),
        Constraint("the row fits the threads' registers", row_is_held),
        Constraint("no block of half as many rows covers them", rows_exist, is_thrift=True),
    ),
    # Two sums a warp, of which only layer_norm needs the first, and a team of a warp none.
    static_shared_bytes=lambda c, p: 2 * p.sum_bytes * -(-threads_held(c) // WARP),
    supports=lambda p: p.shape["n"] <= 1024 * HELD_ELEMENTS,
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)

WALK = Variant(
    name="walk",
    doc="A block a row of any length, which walks along it two times, or three for layer_norm.",
    source="walk.cu",
    launch=launch_walk,
    parameters=(powers_of_two("BLOCK", WARP, 1024, default=256, doc="threads of a block"), VECTOR_WIDTH),
    constraints=(VECTOR_FITS, Constraint("every thread has columns", columns_last)),
    static_shared_bytes=lambda c, p: 2 * p.sum_bytes * (c.BLOCK // WARP),
    takes_size=rows_at_launch,
    is_batch_invariant=always,
)
