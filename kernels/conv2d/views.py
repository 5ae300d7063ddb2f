"""Which problem of conv2d arrays pose: those of PyTorch say themselves which layout they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.kernels.conv2d.shape import shape_w, shape_x, shape_y
from tilewright.kernels.errors import InvalidLayoutError
from tilewright.kernels.fields.axes import Layout
from tilewright.kernels.problem import OptionValue, Problem

SHAPES = {"X": shape_x, "W": shape_w, "Y": shape_y}
CONTIGUOUS = "Make it contiguous, in torch for nhwc by .contiguous(memory_format=torch.channels_last)"


def posed_by(problem: Problem, layouts: Mapping[str, Layout]) -> tuple[dict[str, int], dict[str, OptionValue]]:
    """Shape and options of the problem that these arrays pose to a launcher of `problem`.

    Arrays may have their axes in the order of memory, or in that of PyTorch, whose tensors in the format channels_last
    name the channels second all the same. The layout is that of the arrays. Raises InvalidLayoutError.
    """
    own = str(problem.options["layout"])
    for word in (own, "nchw" if own == "nhwc" else "nhwc"):
        options = dict(problem.options) | {"layout": word}
        candidate = replace(problem, option_items=tuple(options.items()))
        if all(_fits(name, layout, candidate) for name, layout in layouts.items()):
            return problem.stated_shape, options
    name = next(name for name, layout in layouts.items() if not _fits(name, layout, problem))
    layout = layouts[name]
    expected = _expected(name, problem)
    reason = f"has the shape {layout.shape} and strides {layout.strides} (in elements), the problem needs {expected}"
    raise InvalidLayoutError(name, f"{reason}, dense and in one layout with the other arrays", CONTIGUOUS)


def _expected(name: str, problem: Problem) -> tuple[int, ...]:
    return SHAPES[name](problem) if name in SHAPES else (shape_y(problem)[-1 if _is_nhwc(problem) else 1],)


def _is_nhwc(problem: Problem) -> bool:
    return problem.options["layout"] == "nhwc"


def _fits(name: str, layout: Layout, problem: Problem) -> bool:
    """Whether the array holds what the problem says, in the order of memory or in PyTorch's."""
    expected = _expected(name, problem)
    if layout.shape == expected and _is_dense(layout):
        return True
    if name == "W" and problem.options["depthwise"]:  # PyTorch's filters have one channel
        rows, *taps = expected
        alike = Layout((rows, *layout.shape[2:]), (layout.strides[0], *layout.strides[2:]))
        return layout.shape == (rows, 1, *taps) and _is_dense(alike)
    if not _is_nhwc(problem) or len(layout.shape) != 4:
        return False
    order = (0, 2, 3, 1)
    in_memory = Layout(tuple(layout.shape[i] for i in order), tuple(layout.strides[i] for i in order))
    return in_memory.shape == expected and _is_dense(in_memory)


def _is_dense(layout: Layout) -> bool:
    """Row-major without gaps; a stride along an axis of one element says nothing."""
    dense = Layout.dense(layout.shape).strides
    return all(n == 1 or have == want for n, have, want in zip(layout.shape, layout.strides, dense, strict=True))
