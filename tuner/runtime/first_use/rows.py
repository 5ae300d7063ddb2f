"""Some rows of any kernel's result beside its float64 reference, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import ITEM_BYTES, LARGEST, is_integer, sum_dtype
from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem
from tilewright.kernels.reference import Reference
from tilewright.tuner.loop.expected import expected_of
from tilewright.tuner.runtime.first_use.first_use import Finding

ROWS = 16
"""The first, the last and those evenly between; where rows are images, as many as have MOST_ELEMENTS of output."""

_MOST_ELEMENTS = 1 << 18

MOST_FLOPS = 1e9
"""Operations of a whole problem that a call may wait for, where its kernel does not say which results are rows."""

_MOST_FLOPS_OF_ROWS = 2e10

Array = NDArray[Any]


class RowsOf:
    """The rows of a problem that are compared; all of it if the kernel does not tell the axis of its rows.

    A result along that axis depends on the same part of the arrays that have the axis, and on the whole of others; of a
    batch of matrices the last is looked at. `why_not`: why nothing can be compared, else empty.
    """

    def __init__(self, kernel: Kernel, problem: Problem, most_flops: float = MOST_FLOPS) -> None:
        self._kernel, self._full, self.problem = kernel, problem, problem
        self.numbers: list[int] = []
        self._axes: dict[str, int | None] = {tensor.name: None for tensor in kernel.tensors}
        self.why_not = ""
        if kernel.reference is None and kernel.check is None:
            self.why_not = f"{kernel.name} has no reference"
        elif any(tensor.texture or tensor.written for tensor in kernel.tensors):
            self.why_not = f"{kernel.name} reads a texture, or writes a part of its output"
        elif kernel.row_axis and kernel.check is None:
            self._take_rows()
            most_flops = _MOST_FLOPS_OF_ROWS
        if not self.why_not and kernel.estimated_flops(self.problem) > most_flops:
            self.why_not = f"{kernel.name} has no part of this problem's results that is small enough to compute here"

    def _take_rows(self) -> None:
        kernel, problem, axis = self._kernel, self._full, self._kernel.row_axis
        size = problem.shape[axis]
        shape = {name: count for name, count in problem.sizes if name in kernel.axes or name != "batch"}
        shape |= dict(problem.rules)
        options = {name: value for name, value in problem.options.items() if name != "packed_b"}
        whole = kernel.problem(shape, problem.dtype, options)
        of_row = kernel.output.layout(whole).elements // size
        count = max(1, min(size, ROWS, _MOST_ELEMENTS // max(1, of_row)))
        self.numbers = [i * (size - 1) // max(1, count - 1) for i in range(count)]
        self.problem = kernel.problem(shape | {axis: count}, problem.dtype, options)
        for tensor in kernel.tensors:
            pairs = enumerate(zip(tensor.shape(whole), tensor.shape(self.problem), strict=True))
            self._axes[tensor.name] = next((place for place, (large, small) in pairs if large != small), None)

    def of(self, tensor: Tensor, array: Array) -> Array:
        """A copy of an array's rows, if it is laid out as the whole problem's; of an array without rows, all of it."""
        if array.ndim > len(tensor.shape(self.problem)):
            array = array[-1]
        axis = self._axes[tensor.name]
        if axis is not None:
            return np.take(array, self.numbers, axis)
        return np.ascontiguousarray(array)

    def compare(
        self, given: Mapping[str, Array], outputs: Mapping[str, Array], scalars: Mapping[str, float], width: float
    ) -> Finding:
        """The finding on these rows; `given`: the rows that the launch read, as they were before it.

        `width`: how many times as wide the bounds are as verification's.
        """
        expected = expected_of(self._kernel, self.problem, given, scalars).widened(width)
        dtypes = {tensor.name: tensor.dtype_for(self.problem) for tensor in self._kernel.outputs}
        judged = {
            name: _without_overflow(array, expected.references[name], dtypes[name])
            if name in expected.references and not is_integer(dtypes[name])
            else array
            for name, array in outputs.items()
        }
        found = expected.compare(judged)
        if found.is_right:
            return Finding()
        where = found.first_wrong or ()
        axis = self._axes[found.tensor or self._kernel.output.name]
        if where and axis is not None:
            where = (*where[:axis], self.numbers[where[axis]], *where[axis + 1 :])
        return Finding(max(1, found.wrong), tuple(where), found.got, found.expected)


def _without_overflow(out: Array, reference: Reference, dtype: str) -> Array:
    """The output with the right values where it is not finite and sums may have overflowed on their way.

    Verification draws no such numbers, but programs have them.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        may_overflow = ~np.isfinite(out) & (reference.magnitude >= LARGEST[sum_dtype(dtype)] / 2)
        return np.where(may_overflow, reference.value, out) if may_overflow.any() else out


class HostRows:
    """Compares a launch on the host's arrays, given by addresses. `why_not`: see `RowsOf`."""

    def __init__(self, kernel: Kernel, problem: Problem, most_flops: float = MOST_FLOPS) -> None:
        self._kernel, self._problem, self._rows = kernel, problem, RowsOf(kernel, problem, most_flops)
        self.why_not = self._rows.why_not
        self._scalars: dict[str, float] = {}
        self._inputs: dict[str, Array] = {}

    def before(self, addresses: Sequence[int], scalars: Sequence[float]) -> None:
        """Keeps the rows of outputs that the launch reads."""
        places = zip(self._kernel.tensors, addresses, strict=True)
        read = [(tensor, at) for tensor, at in places if tensor.is_read(self._problem)]
        found = {tensor: self._rows.of(tensor, self._array(tensor, at)) for tensor, at in read}
        self._inputs = {one.name: rows if one.role == "input" else rows.copy() for one, rows in found.items()}
        names = [one.name for one in self._kernel.arguments if not isinstance(one, Tensor)]
        self._scalars = dict(zip(names, scalars, strict=True))

    def after(self, addresses: Sequence[int], width: float = 1.0) -> Finding:
        """The finding on the rows that the launch has written, by bounds so many times as wide."""
        places = zip(self._kernel.tensors, addresses, strict=True)
        written = [(tensor, at) for tensor, at in places if tensor.role != "input"]
        outputs = {tensor.name: self._rows.of(tensor, self._array(tensor, at)) for tensor, at in written}
        return self._rows.compare(self._inputs, outputs, self._scalars, width)

    def _array(self, tensor: Tensor, address: int) -> Array:
        return array_at(tensor, self._problem, address)


class _AtAddress:
    """Memory in a form that NumPy takes over without a copy."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (size_bytes,), "typestr": "|u1", "version": 3}


def array_at(tensor: Tensor, problem: Problem, address: int) -> Array:
    """The tensor's elements at that address of the host's memory, as the problem lays them out."""
    layout, dtype = tensor.layout(problem), tensor.dtype_for(problem)
    size_bytes = layout.elements * ITEM_BYTES[dtype]
    flat = np.asarray(_AtAddress(address, size_bytes)).view(np.dtype(dtype))
    strides = tuple(stride * ITEM_BYTES[dtype] for stride in layout.strides)
    return np.lib.stride_tricks.as_strided(flat, layout.shape, strides)
