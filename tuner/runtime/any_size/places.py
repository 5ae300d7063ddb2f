"""Addresses of a family's arrays by the size of its axis: how far they reach, and where a panel begins."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.dtypes import ITEM_BYTES
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel, Tensor
from tilewright.kernels.problem import Problem


def axis_of(tensor: Tensor, family: Family) -> int | None:
    """The axis of the tensor that is the family's; None where its shape does not follow the size."""
    one, two = (tuple(tensor.shape(family.at(size))) for size in (2, 3))
    changed = [place for place, (less, more) in enumerate(zip(one, two, strict=True)) if less != more]
    return changed[0] if changed else None


class Places:
    """Offsets of a panel's rows in a family's arrays, in the kernel's order."""

    def __init__(self, kernel: Kernel, family: Family) -> None:
        one, two = (
            [_reach(tensor, family.at(size)) for tensor in kernel.tensors] for size in (family.high, family.high + 1)
        )
        self._steps = [after - before for before, after in zip(one, two, strict=True)]
        self._starts = [reach - family.high * step for reach, step in zip(one, self._steps, strict=True)]
        self._row_bytes = [_row_bytes(tensor, family) for tensor in kernel.tensors]
        self._written = [place for place, tensor in enumerate(kernel.tensors) if tensor.role != "input"]

    def meet(self, size: int, addresses: Sequence[int]) -> bool:
        """Whether an output and another array share a stretch of memory; they may still be apart within it."""
        ends = [at + start + size * step for at, start, step in zip(addresses, self._starts, self._steps, strict=True)]
        for written in self._written:
            first, end = addresses[written], ends[written]
            for place, address in enumerate(addresses):
                if place != written and address < end and first < ends[place]:
                    return True
        return False

    def moved(self, addresses: Sequence[int], start: int) -> tuple[int, ...]:
        """The addresses of the arrays' parts from element `start` of the axis on."""
        return tuple(address + start * step for address, step in zip(addresses, self._row_bytes, strict=True))


def _reach(tensor: Tensor, problem: Problem) -> int:
    return tensor.size_bytes(problem)


def _row_bytes(tensor: Tensor, family: Family) -> int:
    """The bytes from an element of the axis to the next; 0 in an array that all sizes share."""
    axis = axis_of(tensor, family)
    if axis is None:
        return 0
    return tensor.layout(family.largest).strides[axis] * ITEM_BYTES[tensor.dtype_for(family.largest)]
