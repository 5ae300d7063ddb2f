"""Which problem of gemm arrays pose, by the shapes and strides that they have."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.gemm.layout import stored_rows
from tilewright.kernels.problem import OptionValue, Problem

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
