"""The problem that a caller names by axes and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem


def named_problem(kernel: Kernel, dtype: str, named: Mapping[str, Any]) -> Problem:
    """The problem; an axis of 0 is one as long as the output has no element then."""
    shape = {name: value for name, value in named.items() if name in kernel.axis_names}
    options = {name: value for name, value in named.items() if name not in kernel.axis_names}
    empty = [axis for axis in kernel.axes if shape.get(axis) == 0 and type(shape[axis]) is int]
    problem = kernel.problem(shape | dict.fromkeys(empty, 1), dtype, options)
    if not empty:
        return problem
    problem = replace(problem, axes=tuple((axis, shape[axis]) for axis, _ in problem.axes))
    if 0 not in kernel.output.shape(problem):
        raise InvalidProblemError(
            f"shape.{empty[0]}", "of an empty sum there is nothing to launch; fill the output with 0", f"{empty[0]}=1"
        )
    return problem
