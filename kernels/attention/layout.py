"""Where attention's arrays lie: the axes `kv_heads`, `row_q` … `batch_m`; shapes and strides of Q, K, V, M and O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout, OptionalAxis, Options, Sizes
from tilewright.kernels.problem import OptionValue, Problem

LONGEST_STRIDE = 2**31 - 1  # elements
CONTIGUOUS = "Make it contiguous: .contiguous() in torch, ascontiguousarray in NumPy and CuPy"

Dimensions = tuple[int, int, int]
"""Batch, heads and rows of an array."""


def dimensions(array: str, sizes: Sizes) -> Dimensions:
    """Batch, heads and rows of "q", "k", "v", "m" or "o"."""
    heads = sizes["kv_heads"] if array in "kv" else sizes["heads"]
    return sizes["batch"], heads, sizes["keys"] if array in "kv" else sizes["queries"]


def row_length(array: str, sizes: Sizes) -> int:
    """Elements of a row of Q, K or V."""
    return sizes["keys"] if array == "m" else sizes["depth"]


def has_mask(p: Problem) -> bool:
    """Whether a mask M is added to the scores."""
    return p.options["mask"] == "additive"


def shape_of(array: str, p: Problem) -> tuple[int, ...]:
    """Batch, heads, rows and row length of an array; those of O in the order of memory, (1,) for M without a mask."""
    if array == "m" and not has_mask(p):
        return (1,)
    batch, heads, rows = dimensions(array, p.shape)
    if array == "o" and p.options["heads_inside"]:
        return batch, rows, heads, p.shape["depth"]
    return batch, heads, rows, row_length(array, p.shape)


def strides_of(array: str, p: Problem) -> tuple[int, ...]:
    """Elements from an index of each axis to the next."""
    if array == "m" and not has_mask(p):
        return (1,)
    return p.shape[f"batch_{array}"], p.shape[f"head_{array}"], p.shape[f"row_{array}"], 1


def is_aligned(p: Problem, arrays: str) -> bool:
    """Whether four neighbours of a row are one access, in every one of these arrays."""
    distances = (p.shape[f"{axis}_{array}"] for array in arrays for axis in ("row", "head", "batch"))
    return math.gcd(*distances) % 4 == 0


def _row(array: str, sizes: Sizes, options: Options) -> int:
    inside = bool(options["heads_inside"]) and array != "m"
    return row_length(array, sizes) * (dimensions(array, sizes)[1] if inside else 1)


def _head(array: str, sizes: Sizes, options: Options) -> int:
    inside = bool(options["heads_inside"]) and array != "m"
    return row_length(array, sizes) * (1 if inside else dimensions(array, sizes)[2])


def _batch(array: str, sizes: Sizes, _options: Options) -> int:
    return math.prod(dimensions(array, sizes)[1:]) * row_length(array, sizes)


def _fault(name: str, array: str, sizes: Sizes, _options: Options) -> tuple[str, int] | None:
    least = 0 if array == "m" or name != f"row_{array}" else row_length(array, sizes)
    if least <= sizes[name] <= LONGEST_STRIDE:
        return None
    return f"must be from {least} to {LONGEST_STRIDE}", max(least, 1)


def _kv_heads(sizes: Sizes, _options: Options) -> int:
    return sizes["heads"]


def _kv_fault(sizes: Sizes, _options: Options) -> tuple[str, int] | None:
    heads, shared = sizes["heads"], sizes["kv_heads"]
    is_divisor = 1 <= shared <= heads and heads % shared == 0
    return None if is_divisor else (f"must divide heads, {heads}", heads)


_WORDS = {"row": "a row", "head": "a head", "batch": "an element of the batch"}
_DEFAULTS: Mapping[str, Callable[[str, Sizes, Options], int]] = {"row": _row, "head": _head, "batch": _batch}


def _axis(name: str, array: str) -> OptionalAxis:
    shared = "; 0 where all share" if array == "m" else ""
    doc = f"elements from {_WORDS[name]} of {array.upper()} to the next{shared}"
    full = f"{name}_{array}"
    return OptionalAxis(full, doc, partial(_DEFAULTS[name], array), partial(_fault, full, array))


OPTIONAL_AXES = (
    OptionalAxis(
        *("kv_heads", "heads of K and V, each for as many neighbouring heads of Q", _kv_heads, _kv_fault), is_size=True
    ),
    *(_axis(name, array) for array in "qkvm" for name in ("row", "head", "batch")),
)


def posed_by(problem: Problem, layouts: Mapping[str, Layout]) -> tuple[dict[str, int], dict[str, OptionValue]]:
    """Shape and options of the problem that these arrays pose to a launcher of `problem`.

    Q, K, V and M have the axes batch, heads, rows and columns, whatever their strides; O is dense, with heads before
    rows or behind them. Raises InvalidLayoutError.
    """
    shape, options = dict(problem.axes), dict(problem.options)
    q, k = layouts["Q"].shape, layouts["K"].shape
    for name in "QKV":
        if len(layouts[name].shape) != 4:
            raise InvalidLayoutError(name, f"has the shape {layouts[name].shape}, not four axes", "Give it four axes")
    shape |= {"batch": q[0], "heads": q[1], "queries": q[2], "depth": q[3], "keys": k[2], "kv_heads": k[1]}
    options["heads_inside"] = _is_inside(layouts["O"], shape)
    for name in ("Q", "K", "V", "M") if options["mask"] == "additive" else ("Q", "K", "V"):
        array, layout = name.lower(), layouts[name]
        expected = (*dimensions(array, shape), row_length(array, shape))
        if layout.shape != expected:
            raise InvalidLayoutError(name, f"has the shape {layout.shape}, not {expected}", "Ask best for its shape")
        batch, head, row, column = layout.strides
        if column != 1 and expected[3] > 1:
            raise InvalidLayoutError(name, f"has strides {layout.strides}: rows have gaps", CONTIGUOUS)
        usual = (_batch(array, shape, options), _head(array, shape, options), _row(array, shape, options))
        given = (batch, head, row)
        # A stride along an axis of one element says nothing.
        real = [usual[i] if expected[i] == 1 else given[i] for i in range(3)]
        shape |= dict(zip((f"batch_{array}", f"head_{array}", f"row_{array}"), real, strict=True))
    return shape, options


def _is_inside(o: Layout, sizes: Sizes) -> bool:
    """Whether O has heads behind rows, in the order of memory or in that of strides."""
    batch, heads, rows = dimensions("o", sizes)
    depth = sizes["depth"]
    outside, inside = (batch, heads, rows, depth), (batch, rows, heads, depth)
    if o.shape == outside and _is_same(o, Layout.dense(outside)):
        return False
    dense = Layout.dense(inside)
    swapped = Layout(outside, (dense.strides[0], dense.strides[2], dense.strides[1], 1))
    if (o.shape == inside and _is_same(o, dense)) or (o.shape == outside and _is_same(o, swapped)):
        return True
    raise InvalidLayoutError("O", f"has the shape {o.shape} and strides {o.strides}, not {outside}, dense", CONTIGUOUS)


def _is_same(layout: Layout, other: Layout) -> bool:
    pairs = zip(layout.shape, layout.strides, other.strides, strict=True)
    return all(n == 1 or have == want for n, have, want in pairs)
