"""Launchers' arguments: checks that arrays fit a problem, and derives its transpositions from their layouts.

A transposed view is taken as the kernel's option of that name (`trans_a` for A). A kernel that says which problem its
arrays pose (`posed_by`) takes slices and batches too. Any other stride is refused. Layouts are checked once for each
combination, addresses at each launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.errors import InvalidLayoutError, InvalidProblemError
from tilewright.kernels.fields.axes import Layout as Strided
from tilewright.kernels.kernel import Kernel, Scalar, Tensor
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.kernels.triton import is_compiled_in
from tilewright.tuner.runtime.arrays.views import Layout, contiguous_strides
from tilewright.tuner.runtime.errors import ArgumentError, LaunchError, WrongDeviceError

MOST_OVERLAP_STEPS = 10_000
"""Steps of the search for an element that two views share: some milliseconds; then they count as sharing."""

ALIGNMENT = 16
"""Bytes: what every allocation has and every kernel's vector loads rely on."""


def laid_out(kernel: Kernel, problem: Problem, layouts: Sequence[Layout]) -> Problem:
    """The problem with its transpositions set by these arrays' layouts, one for each tensor in the declared order.

    Raises ArgumentError naming the array and the fix.
    """
    for tensor, layout in zip(kernel.tensors, layouts, strict=True):
        _check_kind(kernel, tensor, problem, layout)
    if kernel.posed_by is not None and 0 not in kernel.output.shape(problem):
        return _posed(kernel, problem, layouts)
    options = dict(problem.options)
    for tensor, layout in zip(kernel.tensors, layouts, strict=True):
        _check_shape(tensor, problem, layout)
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


def _posed(kernel: Kernel, problem: Problem, layouts: Sequence[Layout]) -> Problem:
    """The problem that these arrays pose to a kernel that takes views."""
    as_declared = {t.name: Strided(x.shape, x.strides) for t, x in zip(kernel.tensors, layouts, strict=True)}
    shape: Mapping[str, int] = {}
    options: Mapping[str, OptionValue] = {}
    try:
        if kernel.posed_by is not None:
            shape, options = kernel.posed_by(problem, as_declared)
        return kernel.problem(shape, problem.dtype, options)
    except InvalidLayoutError as error:
        raise ArgumentError(error.name, error.reason, error.remedy) from error
    except InvalidProblemError as error:
        axis = error.field.rpartition(".")[2]
        culprit = next((name for name in as_declared if axis.endswith(f"_{name.lower()}")), kernel.output.name)
        reason = f"{error.reason} ({axis} is {shape[axis]} here)"
        raise ArgumentError(culprit, reason, "Give it memory of its own: a copy") from error


def one_place(kernel: Kernel, layouts: Sequence[Layout]) -> tuple[str, int | None]:
    """The place of all arrays: ("cpu", None), or "cuda" and the GPU's number where an array tells it.

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
    arrays = [
        _Place(start, t.layout(problem), t.dtype_for(problem))
        for t, start in zip(kernel.tensors, addresses, strict=True)
    ]
    for written, output in enumerate(kernel.tensors):
        for place, array in enumerate(arrays if output.role != "input" else ()):
            if place != written and array.meets(arrays[written]):
                shared = kernel.tensors[place].name
                raise ArgumentError(output.name, f"shares memory with {shared}", "Give it memory of its own")


@dataclass(frozen=True)
class _Place:
    """An array at its address, which is not read."""

    start: int
    layout: Strided
    dtype: str

    def meets(self, other: _Place) -> bool:
        """Whether two arrays may have an element in common; views of one matrix need not."""
        if self._end <= other.start or other._end <= self.start:
            return False
        if self.layout.is_dense and other.layout.is_dense:
            return True
        try:
            steps = MOST_OVERLAP_STEPS
            return np.shares_memory(np.asarray(self), np.asarray(other), max_work=steps)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True

    @property
    def _end(self) -> int:
        return self.start + self.layout.elements * ITEM_BYTES[self.dtype]

    @property
    def __array_interface__(self) -> dict[str, object]:
        """NumPy's view of the array: NumPy finds out where strides meet."""
        strides = tuple(stride * ITEM_BYTES[self.dtype] for stride in self.layout.strides)
        typestr = np.dtype(self.dtype).str
        return {
            "version": 3,
            "data": (self.start, True),
            "shape": self.layout.shape,
            "strides": strides,
            "typestr": typestr,
        }


def default_scalars(kernel: Kernel, problem: Problem) -> dict[str, float]:
    """Default scalars: 1, or 0 where the problem says so; for one with a dtype of its own, the value for tuning."""
    return {
        a.name: float(a.value(problem) != 0) if a.dtype is None else a.number(problem)
        for a in kernel.arguments
        if isinstance(a, Scalar)
    }


def scalars_of(kernel: Kernel, problem: Problem, given: Mapping[str, float]) -> tuple[float, ...]:
    """Every scalar in the declared order; raises ArgumentError for one that the problem has fixed at 0."""
    values = default_scalars(kernel, problem)
    scalars = {argument.name: argument for argument in kernel.arguments if isinstance(argument, Scalar)}
    for name, value in given.items():
        if scalars[name].dtype is None and values[name] == 0 and value != 0:
            raise ArgumentError(
                name, f"is {value}, but this problem says that it is 0", f'Ask best("{kernel.name}", …) for the other'
            )
        if kernel.is_triton and is_compiled_in(scalars[name], problem) and value != values[name]:
            reason = f"is {value}, and the code is compiled for {values[name]}"
            raise ArgumentError(name, reason, f'Ask best("{kernel.name}", …) for the problem that has it')
        try:
            values[name] = scalars[name].number_of(value, problem)
        except (TypeError, ValueError, OverflowError) as error:
            dtype = scalars[name].dtype
            if dtype is None:
                raise ArgumentError(name, f"{value!r} is not a number", "Give a float") from error
            raise ArgumentError(name, f"{value!r} is no {dtype}", f"Give a whole number that {dtype} holds") from error
    return tuple(values.values())


def _check_kind(kernel: Kernel, tensor: Tensor, problem: Problem, layout: Layout) -> None:
    expected = tensor.dtype_for(problem)
    if expected not in {problem.dtype, layout.dtype}:
        raise ArgumentError(tensor.name, f"is {layout.dtype}, not {expected}", f"Convert it to {expected}")
    if layout.dtype != expected:
        ask = f', or ask best(…, dtype="{layout.dtype}")'
        fix = ask if layout.dtype in kernel.dtypes else f": {kernel.name} computes in {', '.join(kernel.dtypes)}"
        raise ArgumentError(
            tensor.name, f"is {layout.dtype}, the problem is {problem.dtype}", f"Convert it to {problem.dtype}{fix}"
        )
    if tensor.role != "input" and not layout.is_writable:
        raise ArgumentError(tensor.name, "is read-only, and the kernel writes it", "Give a writable array")


def _check_shape(tensor: Tensor, problem: Problem, layout: Layout) -> None:
    expected_shape = tuple(tensor.shape(problem))
    if layout.shape != expected_shape:
        turned = layout.shape == expected_shape[::-1] and len(expected_shape) == 2
        fix = (
            f"Transpose the view, or ask best(…, trans_{tensor.name.lower()}=…)" if turned else "Ask best for its shape"
        )
        raise ArgumentError(tensor.name, f"has the shape {layout.shape}, the problem needs {expected_shape}", fix)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether it is row-major; the stride of an axis with one element does not count."""
    expected = contiguous_strides(tuple(shape))
    return all(size == 1 or have == want for size, have, want in zip(shape, strides, expected, strict=True))


def _is_transposed(layout: Layout) -> bool:
    return len(layout.shape) == 2 and _is_contiguous(layout.shape[::-1], layout.strides[::-1])


def _place(layout: Layout) -> str:
    if layout.kind == "cpu":
        return "the CPU"
    return "a GPU" if layout.ordinal is None else f"cuda:{layout.ordinal}"


def given_arrays(
    kernel: Kernel, tensors: Sequence[str], arrays: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The kernel's tensors in the declared order, given by place or by name, and the numbers by name.

    Raises LaunchError, or ArgumentError naming the argument.
    """
    if len(arrays) > len(tensors):
        raise LaunchError(f"{kernel.name} takes {len(tensors)} arrays: {', '.join(tensors)}")
    given, numbers = dict(zip(tensors, arrays, strict=False)), dict[str, Any]()
    known = {argument.name for argument in kernel.arguments}
    for name, value in named.items():
        if name not in known:
            raise ArgumentError(name, f"{kernel.name} has no such argument", f"It has {', '.join(sorted(known))}")
        if name in given:
            raise ArgumentError(name, "is given twice", "Give it by place or by name")
        (given if name in tensors else numbers)[name] = value
    for name in tensors:
        if given.get(name) is None:
            raise ArgumentError(name, "is missing", f"Give {', '.join(tensors)}")
    return tuple(given[name] for name in tensors), numbers


def stream_handle(stream: Any) -> int:
    """The handle of a stream of PyCUDA, torch, CuPy or the protocol `__cuda_stream__`; raises LaunchError."""
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "handle", "ptr"):
        member = getattr(stream, name, None)
        if member is not None:
            return int(member)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    raise LaunchError(
        f"stream: {type(stream).__qualname__} is not a CUDA stream. Give one of PyCUDA, torch or CuPy, or its handle"
    )
