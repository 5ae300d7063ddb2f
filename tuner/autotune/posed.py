"""The problem of a declared Triton kernel that a call of its function poses, by the arrays and numbers of the call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.triton import ELEMENTS, is_compiled_in
from tilewright.tuner.runtime.arrays.views import READERS, Layout, contiguous_strides

_PROBES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)
"""Primes, one for each axis: where an argument is one of them, it is that axis."""


class NotPosedError(Exception):
    """The call is none of the declared kernel's problems; the message says why."""


def layout_of(value: Any) -> Layout:
    """The layout of any framework's array; raises LaunchError for a value that is no array."""
    reader = READERS[type(value)]
    return reader.layout(reader.read(value)[1])


def problem_of(kernel: Kernel, values: Sequence[Any], constexprs: Mapping[str, Any]) -> Problem:
    """The problem. `values` are in the order of the kernel's arguments, `constexprs` what the call itself states.

    Axes are found where an argument is an axis by itself: a number, or one side of an array. Raises NotPosedError where
    one is not found, or where numbers and arrays are not those that the declaration gives the problem.
    """
    if len(values) != len(kernel.arguments):
        raise NotPosedError(f"it takes {len(values)} arguments, and {kernel.name} declares {len(kernel.arguments)}")
    layouts = {a.name: layout_of(v) for a, v in zip(kernel.arguments, values, strict=True) if isinstance(a, Tensor)}
    numbers = {a.name: v for a, v in zip(kernel.arguments, values, strict=True) if isinstance(a, Scalar)}
    dtype = next((layouts[t.name].dtype for t in kernel.tensors if t.dtype is None), kernel.dtypes[0])
    try:
        probes = dict(zip(kernel.axes, _PROBES, strict=False))
        probe = replace(kernel, fault=lambda _problem: None).problem(probes, dtype)  # of any size
        sides = dict(_sides(kernel, probe, layouts, numbers))
        found = {axis: sides[number] for axis, number in probe.shape.items() if number in sides}
        own = {name.lower(): value for name, value in constexprs.items() if type(value) is int}
        stated = {axis: own[name] for axis in kernel.axes for name in (axis, f"shape_{axis}") if name in own}
        flags = {o.name: bool(constexprs[o.name.upper()]) for o in kernel.options if o.name.upper() in constexprs}
        problem = kernel.problem(stated | found, dtype, flags)
    except InvalidProblemError as error:
        raise NotPosedError(str(error)) from error
    _check(kernel, problem, layouts, numbers)
    return problem


def _sides(
    kernel: Kernel, probe: Problem, layouts: Mapping[str, Layout], numbers: Mapping[str, Any]
) -> Iterator[tuple[float, int]]:
    """Pairs of the probe's number and the call's at each place; numbers come last, so that they win over shapes."""
    for tensor in kernel.tensors:
        shape, layout = tensor.shape(probe), layouts[tensor.name]
        if len(shape) == len(layout.shape):
            yield from zip(shape, layout.shape, strict=True)
    for argument in kernel.arguments:
        if isinstance(argument, Scalar) and is_compiled_in(argument, probe):
            yield argument.number(probe), int(numbers[argument.name])


def _check(kernel: Kernel, problem: Problem, layouts: Mapping[str, Layout], numbers: Mapping[str, Any]) -> None:
    for argument in kernel.arguments:
        name = argument.name
        if isinstance(argument, Scalar):
            if is_compiled_in(argument, problem) and argument.number(problem) != numbers[name]:
                raise NotPosedError(f"{name} is {numbers[name]}, and {argument.number(problem)} in {problem}")
            continue
        layout, declared = layouts[name], argument.layout(problem)
        dtype = argument.dtype_for(problem)
        if layout.dtype != (ELEMENTS[argument.triton] if argument.triton else dtype):
            raise NotPosedError(f"{name} is {layout.dtype}, and {dtype} in {problem}")
        is_dense = layout.strides == contiguous_strides(layout.shape)
        is_same = _steps(layout.shape, layout.strides) == _steps(declared.shape, declared.strides)
        if not (is_same or (is_dense and declared.is_dense and math.prod(layout.shape) == declared.elements)):
            raise NotPosedError(f"{name} has the shape {layout.shape} and other strides or sizes than in {problem}")


def _steps(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides of the axes that have more than one index."""
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
