"""gemm's variant `streamed_half`: its parameters, what they take of the device, and which are worth a trial."""

from __future__ import annotations

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.kernel import Launch, Variant, ceil_div
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Constraint, Values, choice

MOST_ROWS = 64  # of A: with more, arithmetic counts too
FRAGMENT_LINES = 16  # of B, in a product of a warp
MOST_WHOLE = 16  # rows of A with which a load is of whole lines of the cache, so that half of the sums are dropped
STEP_K = 64  # of a step
OTHER_REGISTERS = 24  # of a thread, beside its sums and the steps under way; sm_90, NVRTC 13.0: 10 to 23
REGISTERS, MOST_REGISTERS = 65536, 255  # of a multiprocessor, of a thread


def loads_of_rows(p: Problem) -> int:
    """Loads of all rows of A, of which there are MOST_ROWS at most: four or eight rows each."""
    m = p.shape["m"]
    return ceil_div(m, 4) if m <= MOST_WHOLE else ceil_div(min(m, MOST_ROWS), 8)


def launch(c: Values, p: Problem) -> Launch:
    """A launch with the column tiles of all matrices along x, and shared memory for the warps' sums."""
    blocks = p.shape["batch"] * ceil_div(p.shape["n"], FRAGMENT_LINES * c.ROWS)
    shared_bytes = 4 * 32 * c.WARPS * c.ROWS * loads_of_rows(p) * 4
    return Launch((blocks, 1, 1), (32 * c.WARPS, 1, 1), shared_bytes, overlaps=True)


def is_supported(p: Problem) -> bool:
    """Whether there are few rows, of 16 bits, and both operands' lines along k begin at multiples of 16 bytes."""
    distances = [p.shape[axis] for axis in ("k", "lda", "ldb")]
    distances += [p.shape["stride_a"], p.shape["stride_b"]] if p.shape["batch"] > 1 else []
    lies_along_k = bool(p.options["trans_b"]) and not p.options["trans_a"]
    return p.dtype in HALF and p.shape["m"] <= MOST_ROWS and lies_along_k and all(d % 8 == 0 for d in distances)


def registers_suffice(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a thread can hold its sums and the steps under way, by estimate."""
    is_whole, loads = p.shape["m"] <= MOST_WHOLE, loads_of_rows(p)
    steps = c.UNROLL * (16 * c.ROWS + (4 if is_whole else 8) * loads)
    sums = (8 if is_whole else 4) * c.ROWS * loads
    return steps + sums + OTHER_REGISTERS <= min(MOST_REGISTERS, REGISTERS // (32 * c.WARPS))


STREAMED_HALF = Variant(
    name="streamed_half",
    doc="bfloat16 and float16 for few rows of A: B is read once, directly into registers, for mma.sync.",
    source="streamed_half.cu",
    launch=launch,
    parameters=(
        choice("WARPS", 4, 8, 16, default=8, doc="warps of a block, which share k"),
        choice("ROWS", 1, 2, 3, 4, 7, doc="groups of 16 columns of C that a block computes"),
        choice("UNROLL", 1, 2, 4, 8, default=2, doc="steps of 64 k that a warp has in flight"),
        choice(
            "WALK", 0, 1, 2, doc="warps share k 0: in turn; 1: in turn, from different steps; 2: in contiguous parts"
        ),
    ),
    constraints=(
        Constraint("registers suffice by estimate", registers_suffice),
        Constraint("warps have steps", lambda c, p, _d: max(4, ceil_div(p.shape["k"], STEP_K)) >= c.WARPS * c.UNROLL),
        Constraint(
            "no block of fewer columns covers them",
            lambda c, p, _d: c.ROWS == 1 or p.shape["n"] > FRAGMENT_LINES * (c.ROWS - 1),
        ),
    ),
    min_compute_capability=(8, 0),
    requires=frozenset({"ptx"}),
    supports=is_supported,
)
