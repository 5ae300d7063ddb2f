"""The ladders: which steps a kernel is learnt by, in order, and why each is faster than the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilewright.kernels.problem import OptionValue
from tilewright.kernels.space import Values

Place = Literal["loop", "blas", "device", "library"]
TENSOR = ("tensor3xtf32", "tensor3xtf32_sliced", "tensor3xtf32_sm90", "tensor3xfp16_sm90")


@dataclass(frozen=True)
class Step:
    """One rung. `place`: a loop on the host, the host's BLAS, a kernel on the device, or the device's library.

    A device step is a configuration of `variants` (empty: all) that `admits` lets pass: searched for where
    `is_searched`, else as its author wrote it. `sweeps`: it also runs at every size. `reason` has two sentences.
    """

    key: str
    title: str
    place: Place
    reason: str
    variants: tuple[str, ...] = ()
    dtype: str = "float32"
    admits: Callable[[Values], bool] = field(default=lambda _values: True, repr=False)
    is_searched: bool = True
    sweeps: bool = True
    than: str = ""
    beyond: int = 0


@dataclass(frozen=True)
class Ladder:
    """A kernel's steps, and the options of its problem. `unit` of the charts: rate of work, or of bytes.

    `compared`: pairs of steps over all sizes, the second in times of the first. `shape`: of the table, where no scale
    has one.
    """

    kernel: str
    formula: str
    steps: tuple[Step, ...]
    compared: tuple[tuple[str, str], ...]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    unit: Literal["gflops", "gb_per_s"] = "gflops"
    shape: Mapping[str, int] = field(default_factory=dict)

    def step(self, key: str) -> Step:
        """The step of that key; raises StopIteration."""
        return next(step for step in self.steps if step.key == key)


def one_dimensional(c: Values) -> bool:
    """Whether a thread computes several outputs along one axis."""
    return (c.WPT_M == 1) != (c.WPT_N == 1)


def two_dimensional(c: Values) -> bool:
    """Whether a thread computes several outputs along both axes."""
    return c.WPT_M > 1 and c.WPT_N > 1


_BLAS = Step(
    "cpu_blas",
    "CPU, BLAS",
    "blas",
    "The same sum, cut into blocks that stay in the caches and spread over vector units and all cores. It is what a "
    "NumPy program gets today, so it is what a GPU has to beat, transfers included.",
)
_LIBRARY = Step(
    "library",
    "library",
    "library",
    "What ships with the device, the fastest of its calls for this problem. It computes in float32 and cuts no "
    "inputs to TF32, which is asked of our steps too.",
)
_TILED_DOUBLE = Step(
    "tiled_float64",
    "tiled, float64",
    "device",
    "The tiled kernel with numbers of twice the size. It moves twice the bytes, and has half of float32's arithmetic "
    "on this generation's data-centre GPUs, a 32nd or a 64th on most others.",
    ("tiled",),
    dtype="float64",
    than="tiled",
)
_TILED_CHECKED = Step(
    "tiled_checked",
    "tiled, bounds checked",
    "device",
    "The tiled kernel where no size divides into tiles: one more along every axis. Every load and store is compared "
    "with the matrices' edges, which the compiler can leave out elsewhere, and the last tiles are nearly empty.",
    ("tiled",),
    than="tiled",
    beyond=1,
)

GEMM = Ladder(
    "gemm",
    "C = alpha A B, row-major",
    (
        Step(
            "cpu_loop",
            "CPU, one-thread loop",
            "loop",
            "Three nested loops in C, one number at a time, as the formula is written. Walking down a column of B "
            "brings a whole cache line for each number used, and nothing runs in parallel.",
        ),
        _BLAS,
        Step(
            "naive",
            "naive",
            "device",
            "A thread an element of C, thousands of them at once. Every thread fetches a whole row of A and a whole "
            "column of B by itself; only the caches, which hand out the same numbers again and again, make it "
            "bearable.",
            ("naive",),
        ),
        Step(
            "tiled",
            "tiled",
            "device",
            "A block brings square tiles of A and B to shared memory and uses each number TILE_WIDTH times, so that "
            "loads from global memory fall to 1/TILE_WIDTH. Where the L1 cache is as fast as shared memory that alone "
            "gains little: each multiply-add still reads two numbers, and this is what holds it up.",
            ("tiled",),
        ),
        _TILED_CHECKED,
        _TILED_DOUBLE,
        Step(
            "wpt_1d",
            "work per thread, 1-D",
            "device",
            "A thread computes several elements of one column or row, so that one number from shared memory serves "
            "all of them. Fewer shared loads for each multiply-add, and several independent sums that hide each "
            "other's waiting.",
            ("wpt",),
            admits=one_dimensional,
        ),
        Step(
            "wpt_2d",
            "work per thread, 2-D",
            "device",
            "A thread computes a rectangle of C in registers: p + q loads now feed p q multiply-adds. Larger tiles "
            "also mean that each element of A and B comes from global memory less often.",
            ("wpt",),
            admits=two_dimensional,
        ),
        Step(
            "register",
            "register tiles",
            "device",
            "A tile a warp, and the next tiles arrive by asynchronous copies while this one is computed on. Work is "
            "cut so that every multiprocessor ends at the same time, along k where there are too few tiles.",
            ("register",),
        ),
        Step(
            "tensor",
            "tensor cores",
            "device",
            "Tensor cores multiply small matrices in one instruction, but on inputs cut to TF32 or FP16. Each number "
            "is split in two parts and three products are added up, which keeps float32's error bound and still wins.",
            TENSOR,
        ),
        _LIBRARY,
    ),
    compared=(("naive", "tiled"), ("tiled", "wpt_1d"), ("wpt_1d", "wpt_2d"), ("tiled", "library")),
)

GEMV = Ladder(
    "gemv",
    "y = alpha A x, A row-major",
    (
        Step(
            "cpu_loop",
            "CPU, one-thread loop",
            "loop",
            "Two nested loops in C. Each number of A is used once, so that the speed of one core at fetching them is "
            "all that counts.",
        ),
        _BLAS,
        Step(
            "naive",
            "naive",
            "device",
            "A thread a row. Neighbouring threads read addresses a whole row apart, so each load of a warp touches 32 "
            "different lines of memory and uses four bytes of each at a time.",
            ("naive",),
            is_searched=False,
        ),
        Step(
            "warp",
            "coalesced, a warp a row",
            "device",
            "The lanes of a warp read neighbouring numbers of one row, which memory delivers in whole lines. The "
            "partial sums meet by shuffles, without shared memory.",
            ("warp",),
            is_searched=False,
        ),
        Step(
            "block",
            "block reduction",
            "device",
            "A whole block on a row: more loads in flight where rows are long. It pays with a reduction through "
            "shared memory at the end, and with idle threads where rows are short.",
            ("block",),
            is_searched=False,
        ),
        Step(
            "vectorized",
            "vectorised",
            "device",
            "Sixteen bytes in one load, and several such loads in flight for each thread. Fewer instructions bring "
            "the same bytes, so that memory is busy all the time.",
            ("vectorized",),
            is_searched=False,
        ),
        Step(
            "tuned",
            "tuned",
            "device",
            "The best of all variants and parameters for this very shape, found by search. How many warps share a row "
            "and how many loads are in flight depends on the shape, and no rule of thumb is right for all.",
        ),
        _LIBRARY,
    ),
    compared=(("naive", "warp"), ("warp", "vectorized"), ("library", "tuned")),
    unit="gb_per_s",
)

LINEAR = Ladder(
    "linear",
    "Y = relu(X Wᵀ + b), row-major",
    (
        Step(
            "cpu_loop",
            "CPU, one-thread loop",
            "loop",
            "Three nested loops in C, then bias and relu. Rows of X and of W lie along the sum, so caches are used "
            "well; what is missing is parallel work.",
        ),
        _BLAS,
        Step(
            "tiled",
            "tiled",
            "device",
            "Square tiles of X and W in shared memory, each number used TILE_WIDTH times, bias and relu applied "
            "before Y is written once. Reading shared memory twice for each multiply-add is what holds it up.",
            ("tiled",),
        ),
        _TILED_CHECKED,
        _TILED_DOUBLE,
        Step(
            "wpt_strided",
            "work per thread, uncoalesced",
            "device",
            "A rectangle of Y in each thread's registers, so that a number from shared memory is used several times. "
            "But each thread loads a run of neighbours by itself, so that a warp's loads are spread over many lines "
            "of memory.",
            ("wpt_strided",),
        ),
        Step(
            "wpt",
            "work per thread, coalesced",
            "device",
            "The same rectangles, with loads shared out so that neighbouring threads read neighbouring addresses, in "
            "vectors. Two buffers take turns, so that the next tile arrives while this one is used.",
            ("wpt",),
            admits=two_dimensional,
        ),
        Step(
            "register",
            "register tiles",
            "device",
            "A tile a warp, fed by a ring of asynchronous copies. Work is cut so that every multiprocessor ends at "
            "the same time, along k where a small batch makes few tiles.",
            ("register",),
        ),
        Step(
            "tensor",
            "tensor cores",
            "device",
            "Tensor cores on numbers split in two parts, three products added up: float32's error bound holds. "
            "Bias and relu are applied in registers.",
            TENSOR,
        ),
        _LIBRARY,
    ),
    compared=(("tiled", "wpt"), ("tiled", "library")),
    options={"activation": "relu"},
)

LADDERS: Mapping[str, Ladder] = {ladder.kernel: ladder for ladder in (GEMM, GEMV, LINEAR)}
