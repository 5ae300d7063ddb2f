"""Launches of a problem one of whose operands is packed once, ahead of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.arrays import arguments
from tilewright.tuner.runtime.arrays.arguments import stream_handle
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.arrays.views import READERS
from tilewright.tuner.runtime.errors import ArgumentError
from tilewright.tuner.runtime.launcher import Launcher
from tilewright.tuner.runtime.launches.cuda import CudaLaunches


class PackedLauncher(Launcher):
    """Launches of a problem with `packed_b`: one operand is given as the result of `pack`."""

    def pack(self, array: Any, *, stream: Any = None) -> PackedOperand:
        """Packs the operand once, for launches of any such problem on it; waits until that is done.

        The array must not change from then on: after a change, pack it again. Raises LaunchError.
        """
        name, reader = self.kernel.packed, READERS[type(array)]
        address, picture = reader.read(array)
        layout, packed = reader.layout(picture), PackedOperand(name, array)
        self._check_device(layout.kind, layout.ordinal)
        usual = ((t.name, t.layout(self.problem), t.dtype_for(self.problem)) for t in self.kernel.tensors)
        layouts = [
            layout if n == name else replace(layout, shape=u.shape, strides=u.strides, dtype=d) for n, u, d in usual
        ]
        writable = [replace(one, is_writable=True) for one in layouts]
        problem = arguments.laid_out(self.kernel, self.problem, writable)
        launches = self._launches(problem, self.device or layout.kind)
        if isinstance(launches, CudaLaunches) and not self._is_empty:
            launches.pack(packed, address, reader.stream(array) if stream is None else stream_handle(stream))
        return packed

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launches as a `Launcher` does, with what `pack` returned in the operand's place."""
        scalars = self._scalars
        if named or len(arrays) != self._count:
            arrays, scalars = self._sorted_out(arrays, named)
        arrays, packed = self._unpacked(arrays)
        readers = [READERS[type(array)] for array in arrays]
        addresses, pictures = map(list, zip(*(r.read(a) for r, a in zip(readers, arrays, strict=True)), strict=True))
        plan = self._last
        if plan.pictures != pictures:
            plan = self._last = self._plans.get(tuple(pictures)) or self._planned(arrays, pictures)
        handle = plan.stream(arrays[0]) if stream is None else stream_handle(stream)
        plan.launch(tuple(addresses), scalars, handle, plan.ordinal, packed)
        return self._written(arrays)

    def _posed(self, arrays: Sequence[Any], named: Mapping[str, Any], device: str | None) -> tuple[Problem, str]:
        """The problem as a `Launcher` poses it, whether the operand is packed or not."""
        arrays = [a.array if isinstance(a, PackedOperand) else a for a in arrays]
        named = {name: a.array if isinstance(a, PackedOperand) else a for name, a in named.items()}
        return super()._posed(arrays, named, device)

    def _unpacked(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], PackedOperand]:
        place = self._tensors.index(self.kernel.packed)
        packed = arrays[place]
        if not isinstance(packed, PackedOperand):
            name = self.kernel.packed
            raise ArgumentError(name, "is not packed, and this problem has packed_b", f"Give what pack({name}) returns")
        return (*arrays[:place], packed.array, *arrays[place + 1 :]), packed
