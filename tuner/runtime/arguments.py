"""Checks that arrays fit a problem, and derives its transpositions from their layouts.

A transposed view is taken as the kernel's option of that name (`trans_a` for A); any other stride is refused. What does
not change from launch to launch is checked once for each combination of layouts, addresses each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.errors import ArgumentError, WrongDeviceError
from tilewright.tuner.runtime.views import Layout, contiguous_strides

ALIGNMENT = 16
"""Bytes: what every allocation has and every kernel's vector loads rely on."""


def laid_out(kernel: Kernel, problem: Problem, layouts: Sequence[Layout]) -> Problem:
    """The problem with its transpositions as these arrays lie, one layout for each tensor in the declared order.

    Raises ArgumentError naming the array and the fix.
    """
    options = dict(problem.options)
    for tensor, layout in zip(kernel.tensors, layouts, strict=True):
        _check_kind(kernel, tensor, problem, layout)
        if 0 in layout.shape:
            continue
        if layout.strides != contiguous_strides(layout.shape) and not _is_contiguous(layout.shape, layout.strides):
            option = f"trans_{tensor.name.lower()}"
            if not _is_transposed(layout) or not isinstance(options.get(option), bool):
                raise ArgumentError(
                    tensor.name,
                    f"strides {layout.strides} (in elements) of shape {layout.shape} are neither row-major"
                    + (" nor a transposed view" if option in options else ""),
                    "Make it contiguous: .contiguous() in torch, ascontiguousarray in NumPy and CuPy",
                )
            options[option] = not options[option]
    return problem if options == problem.options else kernel.problem(problem.shape, problem.dtype, options)


def one_place(kernel: Kernel, layouts: Sequence[Layout]) -> tuple[str, int | None]:
    """Where all arrays are: ("cpu", None), or "cuda" and the GPU's number where an array tells it.

    Raises WrongDeviceError where they are apart.
    """
    ordinals = {layout.ordinal for layout in layouts if layout.ordinal is not None}
    kinds = {layout.kind for layout in layouts}
    if len(kinds) > 1 or len(ordinals) > 1:
        places = ", ".join(f"{t.name} on {_place(layout)}" for t, layout in zip(kernel.tensors, layouts, strict=True))
        raise WrongDeviceError(f"the arrays of one launch must be on one device; there are {places}")
    return kinds.pop(), ordinals.pop() if ordinals else None


def check_addresses(kernel: Kernel, problem: Problem, addresses: Sequence[int]) -> None:
    """Raises ArgumentError for an address that is null or misaligned, and for an output that lies in an input."""
    for tensor, address in zip(kernel.tensors, addresses, strict=True):
        if address == 0:
            raise ArgumentError(tensor.name, "has no memory", "Give an array that holds the data")
        if address % ALIGNMENT:
            raise ArgumentError(
                tensor.name,
                f"starts {address % ALIGNMENT} bytes past a multiple of {ALIGNMENT}, and kernels read vectors",
                "Copy it to an array of its own: .clone() in torch, .copy() in NumPy and CuPy",
            )
    sizes = [math.prod(tensor.shape(problem)) * problem.item_bytes for tensor in kernel.tensors]
    spans = [(start, start + size) for start, size in zip(addresses, sizes, strict=True)]
    written = kernel.tensors.index(kernel.output)
    for place, (start, end) in enumerate(spans):
        if place != written and start < spans[written][1] and spans[written][0] < end:
            shared = kernel.tensors[place].name
            raise ArgumentError(kernel.output.name, f"shares memory with {shared}", "Give it memory of its own")


def default_scalars(kernel: Kernel, problem: Problem) -> dict[str, float]:
    """1 for each scalar; 0 where the problem says that it is 0."""
    return {a.name: float(a.value(problem) != 0) for a in kernel.arguments if isinstance(a, Scalar)}


def scalars_of(kernel: Kernel, problem: Problem, given: Mapping[str, float]) -> tuple[float, ...]:
    """Every scalar in the declared order; raises ArgumentError for one that the problem has fixed at 0."""
    values = default_scalars(kernel, problem)
    for name, value in given.items():
        if values[name] == 0 and value != 0:
            raise ArgumentError(
                name, f"is {value}, but this problem says that it is 0", f'Ask best("{kernel.name}", …) for the other'
            )
        try:
            values[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ArgumentError(name, f"{value!r} is not a number", "Give a float") from error
    return tuple(values.values())


def _check_kind(kernel: Kernel, tensor: Tensor, problem: Problem, layout: Layout) -> None:
    if layout.dtype != problem.dtype:
        ask = f', or ask best(…, dtype="{layout.dtype}")'
        fix = ask if layout.dtype in kernel.dtypes else f": {kernel.name} computes in {', '.join(kernel.dtypes)}"
        raise ArgumentError(
            tensor.name, f"is {layout.dtype}, the problem is {problem.dtype}", f"Convert it to {problem.dtype}{fix}"
        )
    expected_shape = tuple(tensor.shape(problem))
    if layout.shape != expected_shape:
        turned = layout.shape == expected_shape[::-1] and len(expected_shape) == 2
        fix = (
            f"Transpose the view, or ask best(…, trans_{tensor.name.lower()}=…)" if turned else "Ask best for its shape"
        )
        raise ArgumentError(tensor.name, f"has the shape {layout.shape}, the problem needs {expected_shape}", fix)
    if tensor.role != "input" and not layout.is_writable:
        raise ArgumentError(tensor.name, "is read-only, and the kernel writes it", "Give a writable array")


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Row-major, where the stride of an axis with one element does not count."""
    expected = contiguous_strides(tuple(shape))
    return all(size == 1 or have == want for size, have, want in zip(shape, strides, expected, strict=True))


def _is_transposed(layout: Layout) -> bool:
    return len(layout.shape) == 2 and _is_contiguous(layout.shape[::-1], layout.strides[::-1])


def _place(layout: Layout) -> str:
    if layout.kind == "cpu":
        return "the CPU"
    return "a GPU" if layout.ordinal is None else f"cuda:{layout.ordinal}"
