"""Where gemm's matrices lie: the axes `batch`, `lda` … `stride_c`, shapes and strides, and both from arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout, OptionalAxis, Options, Sizes
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.kernels.variant import SHARED_COUNTER_BYTES

LONGEST_ROW = 2**31 - 1
LONGEST_STRIDE = 2**40  # elements: 4 TiB of float32, more than any device has


def stored_rows(matrix: str, sizes: Sizes, options: Options) -> tuple[int, int]:
    """Rows of a matrix ("a", "b" or "c") as it is stored, and how many elements each has."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    if matrix == "a":
        return (k, m) if options["trans_a"] else (m, k)
    if matrix == "b":
        return (n, k) if options["trans_b"] else (k, n)
    return m, n


def shape_of(matrix: str, p: Problem) -> tuple[int, ...]:
    """A matrix as it is stored; with a batch, that many of them."""
    rows = stored_rows(matrix, p.shape, p.options)
    return (p.shape["batch"], *rows) if has_batch(p) else rows


def strides_of(matrix: str, p: Problem) -> tuple[int, ...]:
    """Elements from a row to the next, and from an element to the next; for a batch first those between matrices."""
    within = (p.shape[f"ld{matrix}"], 1)
    return (p.shape[f"stride_{matrix}"], *within) if has_batch(p) else within


def has_batch(p: Problem) -> bool:
    """Whether there are several products; where their number comes with the launch, also if it is one."""
    return p.shape["batch"] > 1 or p.at_launch == "batch"


@lru_cache(maxsize=256)
def row_divisors(p: Problem) -> tuple[int, int, int]:
    """The largest number for A, B and C that divides the length of a stored row and the distances of rows and of
    matrices.

    Vectors of so many elements, or of a divisor of it, never reach across the end of a row.
    """
    a, b, c = (math.gcd(_row_length(x, p.shape, p.options), p.shape[f"ld{x}"], p.shape[f"stride_{x}"]) for x in "abc")
    return a, b, c


def takes_rows(p: Problem) -> bool:
    """Whether m may come with the launch: A is not transposed (its pitch would vary), and there is no batch."""
    return p.at_launch == "m" and not p.options["trans_a"] and p.shape["batch"] == 1


def takes_rows_or_batch(p: Problem) -> bool:
    """Whether m may come with the launch, or the batch, of which such a source has only its number in the grid."""
    return takes_rows(p) or p.at_launch == "batch"


def counters_fit(count: int) -> bool:
    """Whether so many counters fit at the start of a workspace that all sizes share."""
    return 4 * count <= SHARED_COUNTER_BYTES


def counter_bytes(count: int, p: Problem) -> int:
    """Bytes of so many counters at the start of a workspace, up to where sums begin."""
    return SHARED_COUNTER_BYTES if p.at_launch else -(-4 * count // 16) * 16


def fastest_tile(p: Problem, d: Limits, sizes: Iterable[tuple[int, int]], load_cost: int) -> tuple[int, int]:
    """The size of tile that takes the least time by estimate: every multiprocessor's turns, of products and of loads.

    `load_cost`: of a row or column of a tile, in products.
    """

    def cost(tile: tuple[int, int]) -> int:
        tiles = p.shape["batch"] * -(-p.shape["m"] // tile[0]) * -(-p.shape["n"] // tile[1])
        return -(-tiles // d.multiprocessors) * (tile[0] * tile[1] + load_cost * (tile[0] + tile[1]))

    return min(sizes, key=cost)


def _row_length(matrix: str, sizes: Sizes, options: Options) -> int:
    return stored_rows(matrix, sizes, options)[1]


def _row_fault(matrix: str, sizes: Sizes, options: Options) -> tuple[str, int] | None:
    length = _row_length(matrix, sizes, options)
    if length <= sizes[f"ld{matrix}"] <= LONGEST_ROW:
        return None
    return f"must be from {length}, the length of a stored row of {matrix.upper()}, to {LONGEST_ROW}", length


def _whole_matrix(matrix: str, sizes: Sizes, options: Options) -> int:
    return stored_rows(matrix, sizes, options)[0] * sizes[f"ld{matrix}"]


def _stride_fault(matrix: str, sizes: Sizes, options: Options) -> tuple[str, int] | None:
    rows, length = stored_rows(matrix, sizes, options)
    stride, pitch, batch = sizes[f"stride_{matrix}"], sizes[f"ld{matrix}"], sizes["batch"]
    name, whole = matrix.upper(), rows * pitch
    if batch == 1:
        return "says where the matrices of a batch lie; leave it out, or give a batch", whole
    if not 0 <= stride <= LONGEST_STRIDE:
        return f"must be from 0 to {LONGEST_STRIDE}", whole
    if stride == 0:
        return ("C is written, so its matrices cannot share memory", whole) if matrix == "c" else None
    lie_apart = stride >= (rows - 1) * pitch + length
    take_turns = stride >= length and (rows == 1 or pitch >= (batch - 1) * stride + length)
    if lie_apart or take_turns:
        return None
    shared = "" if matrix == "c" else "be 0 where all products share one matrix, "
    fault = (
        f"matrices of {name} overlap: it must {shared}be at least {(rows - 1) * pitch + length}, or, where rows of the "
        f"matrices take turns, at least {length} with ld{matrix} at least {(batch - 1) * stride + length}"
    )
    return fault, whole


def _one(_sizes: Sizes, _options: Options) -> int:
    return 1


def _batch_fault(sizes: Sizes, _options: Options) -> tuple[str, int] | None:
    return None if 1 <= sizes["batch"] <= LONGEST_ROW else (f"must be a whole number from 1 to {LONGEST_ROW}", 1)


def _axis(
    name: str, doc: str, default: Callable[[str, Sizes, Options], int], fault: Callable[..., tuple[str, int] | None]
) -> OptionalAxis:
    matrix = name[-1]
    return OptionalAxis(name, doc, partial(default, matrix), partial(fault, matrix))


OPTIONAL_AXES = (
    OptionalAxis("batch", "products of one launch, each with matrices of its own", _one, _batch_fault, is_size=True),
    *(
        _axis(f"ld{x}", f"elements from a row of {x.upper()}, as it is stored, to the next", _row_length, _row_fault)
        for x in "abc"
    ),
    *(
        _axis(
            f"stride_{x}",
            f"elements from a matrix {x.upper()} of the batch to the next"
            + ("" if x == "c" else "; 0 where all products share one"),
            _whole_matrix,
            _stride_fault,
        )
        for x in "abc"
    ),
)


CONTIGUOUS = "Make it contiguous: .contiguous() in torch, ascontiguousarray in NumPy and CuPy"


def posed_by(problem: Problem, layouts: Mapping[str, Layout]) -> tuple[dict[str, int], dict[str, OptionValue]]:
    """Shape and options of the problem that these arrays pose to a launcher of `problem`.

    Transpositions, leading dimensions and strides are those of the arrays. Where the problem has no batch, C with three
    axes gives one; an input with two axes is shared by all its products. Raises InvalidLayoutError.
    """
    shape, options = dict(problem.axes), dict(problem.options)
    c = layouts["C"]
    shape["batch"] = c.shape[0] if problem.shape["batch"] == 1 and len(c.shape) == 3 else problem.shape["batch"]
    for name, layout in layouts.items():
        matrix = name.lower()
        rows, columns = _matrix(name, layout, stored_rows(matrix, shape, problem.options), shape["batch"])
        lead, is_turned = _lead(name, layout, rows, columns, may_turn=name != "C")
        if is_turned:
            options[f"trans_{matrix}"] = not options[f"trans_{matrix}"]
        shape[f"ld{matrix}"] = lead
        if shape["batch"] > 1:
            shape[f"stride_{matrix}"] = layout.strides[0] if len(layout.shape) == 3 else 0
    return shape, options


def _matrix(name: str, layout: Layout, expected: tuple[int, int], batch: int) -> tuple[int, int]:
    """Rows and columns of the array, or of each of its matrices."""
    fitting = [(batch, *expected)] + ([expected] if name != "C" or batch == 1 else [])
    if layout.shape in fitting:
        return expected
    is_turned = layout.shape[-2:] == expected[::-1] and len(layout.shape) in {2, 3}
    needed = " or ".join(map(str, fitting[::-1] if batch == 1 else fitting))
    fix = f"Transpose the view, or ask best(…, trans_{name.lower()}=…)" if is_turned else "Ask best for its shape"
    raise InvalidLayoutError(name, f"has the shape {layout.shape}, the problem needs {needed}", fix)


def _lead(name: str, layout: Layout, rows: int, columns: int, *, may_turn: bool) -> tuple[int, bool]:
    """Elements from a row of the array as it is stored to the next; whether it is stored turned.

    A stride along an axis of one element says nothing.
    """
    down, along = layout.strides[-2:]
    if (columns == 1 or along == 1) and (rows == 1 or down >= columns):
        return (columns if rows == 1 else down), False
    if may_turn and (rows == 1 or down == 1) and (columns == 1 or along >= rows):
        return (rows if columns == 1 else along), True
    reason = f"strides {layout.strides} (in elements) of shape {layout.shape} are neither those of rows"
    rest = " nor of columns that lie apart, each without gaps" if may_turn else " that lie apart, without gaps in them"
    raise InvalidLayoutError(name, reason + rest, CONTIGUOUS)
