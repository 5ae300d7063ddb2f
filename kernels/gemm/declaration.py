"""gemm: its arguments, work counts, variants and their search spaces."""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.gemm.reference import gemm_reference, terms
from tilewright.kernels.gemm.register_space import REGISTER
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.kernels.gemm.tensor_mma_space import TENSOR1XTF32, TENSOR3XTF32
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.kernel import Kernel, Launch, Option, Scalar, Tensor, Variant
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.reference import ProductReference
from tilewright.kernels.space import Constraint, Values, choice, powers_of_two

SMALLEST_TILE = 16  # along m and n; along k it is 8
VECTOR_BYTES = 16  # the widest access of one thread to memory (CUDA C++ Programming Guide, "Device Memory Accesses")
RESERVED_SHARED_BYTES = 1024  # of each block, by the driver, since compute capability 8.0 (CUDA guide, 16.7)
OTHER_REGISTERS = 32  # addresses and counters beside the numbers held; sm_90, NVRTC 13.0: 20 to 40


ACCURACY = Option(
    "accuracy",
    ("fp32", "fp32-fma", "tf32"),
    default="fp32",
    doc="fp32: any arithmetic within the float32 error bound; fp32-fma: CUDA cores only; tf32: inputs to 10 bits",
    only_dtypes=("float32",),
)


def tiles(extent: int, tile: int) -> int:
    """How many tiles cover the extent."""
    return -(-extent // tile)


def launch_naive(c: Values, p: Problem) -> Launch:
    """A thread an element, all blocks along x."""
    blocks = tiles(p.shape["n"], c.BLOCK_X) * tiles(p.shape["m"], c.BLOCK_Y)
    return Launch((blocks, 1, 1), (c.BLOCK_X, c.BLOCK_Y, 1))


def launch_tiled(c: Values, p: Problem) -> Launch:
    """A square block a square tile, all tiles along x."""
    width = c.TILE_WIDTH
    return Launch((tiles(p.shape["n"], width) * tiles(p.shape["m"], width), 1, 1), (width, width, 1))


def launch_wpt(c: Values, p: Problem) -> Launch:
    """A block a tile; tiles and threads along x."""
    return Launch((tiles(p.shape["m"], c.TILE_M) * tiles(p.shape["n"], c.TILE_N), 1, 1), (threads_wpt(c), 1, 1))


def threads_wpt(c: Values) -> int:
    """Threads of a block of `wpt`."""
    return (c.TILE_M // c.WPT_M) * (c.TILE_N // c.WPT_N)


def shared_bytes_tiled(c: Values, p: Problem) -> int:
    """One tile of each operand, rows one element longer."""
    return 2 * c.TILE_WIDTH * (c.TILE_WIDTH + 1) * p.item_bytes


def shared_bytes_wpt(c: Values, p: Problem) -> int:
    """Two buffers of both operands; an operand that is transposed on the way has rows padded by 16 bytes."""
    padding = VECTOR_BYTES // p.item_bytes
    pitch_a = c.TILE_M + (0 if p.options["trans_a"] else padding)
    pitch_b = c.TILE_N + (padding if p.options["trans_b"] else 0)
    return 2 * c.TILE_K * (pitch_a + pitch_b) * p.item_bytes


def row_lengths(p: Problem) -> tuple[int, int]:
    """How many elements a row of A and a row of B have in memory."""
    m, n, k = p.shape["m"], p.shape["n"], p.shape["k"]
    return (m if p.options["trans_a"] else k), (k if p.options["trans_b"] else n)


def rows_divide(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether vectors fit the rows of an operand at least; the source reads the other one element by element."""
    return any(length % c.VECTOR_WIDTH == 0 for length in row_lengths(p))


def every_thread_loads(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether a step brings a vector or more of each operand to every thread."""
    widths = (c.VECTOR_WIDTH if length % c.VECTOR_WIDTH == 0 else 1 for length in row_lengths(p))
    return all(
        tile * c.TILE_K >= width * threads_wpt(c) for tile, width in zip((c.TILE_M, c.TILE_N), widths, strict=True)
    )


def tile_suits_problem(c: Values, p: Problem, _d: Limits) -> bool:
    """Whether no tile of half the size would cover an axis as well."""
    sizes = ((c.TILE_M, SMALLEST_TILE, "m"), (c.TILE_N, SMALLEST_TILE, "n"), (c.TILE_K, SMALLEST_TILE // 2, "k"))
    return all(tile == smallest or tile // 2 < p.shape[axis] for tile, smallest, axis in sizes)


def blocks_reside(c: Values, p: Problem, d: Limits) -> bool:
    """Whether MIN_BLOCKS blocks fit one multiprocessor, and asking for them changes what the compiler does."""
    if c.MIN_BLOCKS == 1:
        return True
    threads = c.MIN_BLOCKS * threads_wpt(c)
    binds = "ptx" in d.features and threads * d.max_registers_per_thread > d.registers_per_multiprocessor
    shared_bytes = c.MIN_BLOCKS * (shared_bytes_wpt(c, p) + RESERVED_SHARED_BYTES)
    return (
        binds
        and threads <= d.max_threads_per_multiprocessor
        and shared_bytes <= d.shared_bytes_per_multiprocessor
        and d.max_blocks_per_multiprocessor >= c.MIN_BLOCKS
    )


def registers_suffice(c: Values, p: Problem, d: Limits) -> bool:
    """Whether sums, shares of one step and prefetched numbers fit a thread's registers, by estimate."""
    threads = threads_wpt(c)
    prefetched = (c.TILE_M + c.TILE_N) * c.TILE_K // threads
    numbers = c.WPT_M * c.WPT_N + c.WPT_M + c.WPT_N + prefetched
    available = min(d.max_registers_per_thread, d.registers_per_multiprocessor // (threads * c.MIN_BLOCKS))
    return numbers * p.item_bytes // 4 + OTHER_REGISTERS <= available


NAIVE = Variant(
    name="naive",
    doc="A thread an element of C, straight from global memory.",
    source="naive.cu",
    launch=launch_naive,
    parameters=(
        powers_of_two("BLOCK_X", 4, 256, default=32, doc="columns of C in a block"),
        powers_of_two("BLOCK_Y", 1, 64, default=8, doc="rows of C in a block"),
    ),
    constraints=(Constraint("a block is whole warps", lambda c, _p, _d: c.BLOCK_X * c.BLOCK_Y % 32 == 0),),
)

TILED = Variant(
    name="tiled",
    doc="Square tiles in shared memory, a thread an element of C.",
    source="tiled.cu",
    launch=launch_tiled,
    parameters=(choice("TILE_WIDTH", 4, 8, 16, 24, 32, default=16, doc="rows and columns of a tile"),),
    static_shared_bytes=shared_bytes_tiled,
)

WPT = Variant(
    name="wpt",
    doc="More work per thread: a rectangle of C in registers, double-buffered tiles in shared memory, vector loads.",
    source="wpt.cu",
    launch=launch_wpt,
    parameters=(
        powers_of_two("TILE_M", SMALLEST_TILE, 256, default=64, doc="rows of C that a block computes"),
        powers_of_two("TILE_N", SMALLEST_TILE, 256, default=64, doc="columns of C that a block computes"),
        powers_of_two("TILE_K", SMALLEST_TILE // 2, 32, default=16, doc="length of a step along k"),
        powers_of_two("WPT_M", 1, 16, default=4, doc="rows of C that a thread computes"),
        powers_of_two("WPT_N", 1, 16, default=4, doc="columns of C that a thread computes"),
        powers_of_two("VECTOR_WIDTH", 1, 4, default=4, doc="elements in one access to global memory"),
        powers_of_two("MIN_BLOCKS", 1, 4, default=1, doc="blocks a multiprocessor that registers must suffice for"),
    ),
    constraints=(
        Constraint("a block is whole warps", lambda c, _p, _d: threads_wpt(c) % 32 == 0),
        Constraint("a vector is at most 16 bytes", lambda c, p, _d: c.VECTOR_WIDTH * p.item_bytes <= VECTOR_BYTES),
        Constraint("rows of A or B divide into vectors", rows_divide),
        Constraint("every thread loads from both operands", every_thread_loads),
        Constraint("no tile of half the size covers the axis", tile_suits_problem),
        Constraint("the blocks asked for fit a multiprocessor", blocks_reside),
        Constraint("registers suffice by estimate", registers_suffice),
    ),
    static_shared_bytes=shared_bytes_wpt,
)


def shape_a(p: Problem) -> tuple[int, ...]:
    """A as it is stored."""
    m, k = p.shape["m"], p.shape["k"]
    return (k, m) if p.options["trans_a"] else (m, k)


def shape_b(p: Problem) -> tuple[int, ...]:
    """B as it is stored."""
    k, n = p.shape["k"], p.shape["n"]
    return (n, k) if p.options["trans_b"] else (k, n)


def reads_c(p: Problem) -> bool:
    """Whether C counts as an input."""
    return not p.options["beta_zero"]


def flops(p: Problem) -> int:
    """2 m n k: a multiplication and an addition per product; alpha and beta are left out, as libraries do."""
    return 2 * p.shape["m"] * p.shape["n"] * p.shape["k"]


def bytes_moved(p: Problem) -> int:
    """Read A and B once, write C once, and read it once where beta counts."""
    m, n, k = p.shape["m"], p.shape["n"], p.shape["k"]
    return (m * k + k * n + m * n * (2 if reads_c(p) else 1)) * p.item_bytes


KERNEL = Kernel(
    name="gemm",
    doc="C = alpha op(A) op(B) + beta C, row-major; op transposes where the option says so.",
    folder=Path(__file__).parent,
    axes=("m", "n", "k"),
    dtypes=("float32", "float64"),
    options=(
        Option("trans_a", (False, True), default=False, doc="A is stored as (k, m)"),
        Option("trans_b", (False, True), default=False, doc="B is stored as (n, k)"),
        Option("beta_zero", (False, True), default=True, doc="beta is 0 and C is not read"),
        ACCURACY,
    ),
    arguments=(
        # Powers of two beside 1: exact in every dtype, and a kernel that forgets one is found out.
        Scalar("alpha", lambda _p: 2.0),
        Tensor("A", "input", shape_a, summed=lambda p: 0 if p.options["trans_a"] else 1),
        Tensor("B", "input", shape_b, summed=lambda p: 1 if p.options["trans_b"] else 0),
        Scalar("beta", lambda p: 0.5 if reads_c(p) else 0.0),
        Tensor("C", "inout", lambda p: (p.shape["m"], p.shape["n"]), read_when=reads_c),
    ),
    variants=(
        NAIVE,
        TILED,
        WPT,
        REGISTER,
        TENSOR3XTF32,
        TENSOR3XTF32_SM90,
        TENSOR3XFP16_SM90,
        TENSOR1XTF32,
        TENSOR1XTF32_SM90,
    ),
    flops=flops,
    bytes_moved=bytes_moved,
    reference=gemm_reference,
    ranking_l2="warm",
    default_variant="wpt",
    example_shape={"m": 1024, "n": 1024, "k": 1024},
    product=ProductReference(terms),
)
