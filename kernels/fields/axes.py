"""Axes that a shape may leave out, and how a tensor that is no dense array lies in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Sizes = Mapping[str, int]
Options = Mapping[str, bool | str]

UNWRITTEN = 0xFF
"""Every byte of what lies between the rows of a tensor: NaN in float32 and in float64."""


@dataclass(frozen=True)
class OptionalAxis:
    """An axis with a default, which a problem's key leaves out, so that problems without it keep their key.

    `default(sizes, options)` is called with the axes before this one, `fault(sizes, options)` with this one too
    where it is not the default: in words what is wrong with it, and a value that would do, or None. Both are functions
    of a module, because problems are pickled.
    """

    name: str
    doc: str
    default: Callable[[Sizes, Options], int]
    fault: Callable[[Sizes, Options], tuple[str, int] | None]
    is_size: bool = False  # how much there is to compute
    is_place: bool = True  # otherwise where arrays lie: the same can be computed without it


@dataclass(frozen=True)
class Layout:
    """The shape of a tensor in memory, and along each axis the elements from one index to the next.

    A stride of 0 is an axis along which all share the same elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def dense(cls, shape: tuple[int, ...]) -> Layout:
        """The row-major layout of that shape, without gaps."""
        return cls(shape, tuple(math.prod(int(n) for n in shape[i + 1 :]) for i in range(len(shape))))

    @cached_property
    def elements(self) -> int:
        """Elements of memory from the first to the last."""
        if 0 in self.shape:
            return 0
        return sum((int(n) - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + 1

    @property
    def is_dense(self) -> bool:
        """Whether it is row-major without gaps."""
        return self == Layout.dense(self.shape)

    @property
    def is_of_matrices(self) -> bool:
        """Whether `as_matrices` can describe it: it is dense, or whole rows of one matrix or several."""
        return self.is_dense or (len(self.shape) in {2, 3} and self.strides[-1] == 1)

    @property
    def as_matrices(self) -> tuple[int, int, int, int, int]:
        """Matrices, rows and columns, and elements from a matrix and from a row to the next; one row where dense."""
        if self.is_dense:
            return 1, 1, self.elements, self.elements, self.elements
        *matrices, rows, columns = self.shape
        return math.prod(matrices), rows, columns, self.strides[0] if matrices else 0, self.strides[-2]

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape with 1 for axes along which elements are shared."""
        return tuple(1 if stride == 0 else n for n, stride in zip(self.shape, self.strides, strict=True))

    def view(self, memory: NDArray[Any]) -> NDArray[Any]:
        """The tensor in `memory`, which holds `elements`."""
        steps = tuple(stride * memory.itemsize for stride in self.strides)
        return as_strided(memory, self.shape, steps)

    def placed(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """A tensor of this layout with these numbers, of `own_shape`; between its rows lies NaN."""
        if self.is_dense:
            return np.ascontiguousarray(numbers)
        memory = np.full(self.elements * numbers.itemsize, UNWRITTEN, np.uint8).view(numbers.dtype)
        own = Layout(self.own_shape, self.strides)
        own.view(memory)[...] = numbers
        return self.view(memory)

    def gaps_written(self, memory: NDArray[Any]) -> int:
        """How many elements between the rows differ from what `placed` left there."""
        if self.is_dense:
            return 0
        in_gap = np.ones(self.elements, bool)
        self.view(in_gap)[...] = False
        is_written = (memory.view(np.uint8).reshape(self.elements, -1) != UNWRITTEN).any(axis=1)
        return int(np.count_nonzero(in_gap & is_written))

    def memory_of(self, tensor: NDArray[Any]) -> NDArray[Any]:
        """All elements of memory from the first of a tensor of this layout to its last, as one axis."""
        return tensor.reshape(-1) if self.is_dense else as_strided(tensor, (self.elements,), (tensor.itemsize,))
