"""A launcher that takes any size of one axis: `best("gemm", n=4096, k=4096)` takes any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.errors import NoDeviceError
from tilewright.tuner.runtime import arguments, dlpack
from tilewright.tuner.runtime.any_size.cuda import FamilyLaunches
from tilewright.tuner.runtime.any_size.host import HostFamilyLaunches
from tilewright.tuner.runtime.any_size.places import axis_of
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.errors import ArgumentError
from tilewright.tuner.runtime.forks import ForkSafeLock
from tilewright.tuner.runtime.launcher import Launcher, given_arrays, place_of, resolved, stream_handle
from tilewright.tuner.runtime.packed import PackedOperand
from tilewright.tuner.runtime.views import READERS, Layout


class _Launches(Protocol):
    def launch(self, call: SizedCall, ordinal: int | None, /) -> None: ...

    def prepare(self, ordinal: int, /) -> None: ...


@dataclass(frozen=True)
class _Plan:
    """How arrays that lie so are launched, whatever the size. `ordinal`: as in the plan of a `Launcher`."""

    launch: Callable[..., object]
    stream: Callable[[Any], int]
    ordinal: int | None


class AnySizeLauncher:
    """Launches of one family. Any number of threads may call it.

    `exact(size)`: the launcher of that one size, for arrays whose layouts follow the size, such as a transposed A.
    """

    def __init__(
        self,
        kernel: Kernel,
        family: Family,
        device: str | None,
        source: RangeSource,
        exact: Callable[[int], Launcher],
    ) -> None:
        self.kernel, self.family, self.device = kernel, family, device
        self._source, self._exact = source, exact
        self._tensors = tuple(tensor.name for tensor in kernel.tensors)
        self._axes = [axis_of(tensor, family) for tensor in kernel.tensors]
        self._first = next(place for place, axis in enumerate(self._axes) if axis is not None)
        written = [place for place, tensor in enumerate(kernel.tensors) if tensor.role != "input"]
        self._written = itemgetter(*written)
        self._scalars = tuple(arguments.default_scalars(kernel, family.largest).values())
        self._plans: dict[Hashable, _Plan] = {}
        self._on: dict[tuple[str, str], _Launches] = {}
        self._lock = ForkSafeLock()

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launches on these arrays, as a `Launcher`'s, of any size along the axis; returns the output.

        Raises LaunchError, after which nothing has run.
        """
        scalars = self._scalars
        if named or len(arrays) != len(self._tensors):
            arrays, numbers = given_arrays(self.kernel, self._tensors, arrays, named)
            scalars = arguments.scalars_of(self.kernel, self.family.largest, numbers) if numbers else scalars
        packed, arrays = self._unpacked(arrays)
        addresses, layout, size = [], [], -1
        for array, axis in zip(arrays, self._axes, strict=True):
            reader = READERS[type(array)]
            address, picture = reader.read(array)
            addresses.append(address)
            if axis is None:
                layout.append(picture)
                continue
            place = 2 if reader.read is dlpack.borrow else 1  # of the shape in the picture
            shape = picture[place]  # type: ignore[index]
            if len(shape) <= axis or size not in {-1, shape[axis]}:
                size = 0
                break
            size = shape[axis]
            layout.append((picture[:place], shape[:axis], shape[axis + 1 :], picture[place + 1 :]))  # type: ignore[index]
        plan = self._plans.get(tuple(layout)) if size > 0 else None
        if plan is None:
            plan, size = self._planned(arrays, tuple(layout))
        if size:
            handle = plan.stream(arrays[0]) if stream is None else stream_handle(stream)
            plan.launch(SizedCall(size, tuple(addresses), scalars, handle, packed), plan.ordinal)
        return self._written(arrays)

    def prepare(self, device: str | None = None) -> None:
        """Compiles and loads for row-major arrays on that device, and computes every grid within the family's range.

        No launch of any size has to compile, look up or allocate afterwards, but for the first on another stream, which
        allocates a workspace.
        """
        name = self._device(device)
        ordinal = int(name.partition(":")[2]) if name != "cpu" else 0
        self._launches(self.family, name).prepare(ordinal)

    def ranges(self, device: str | None = None) -> Ranges:
        """Which configuration serves which sizes on that device."""
        return self._source.ranges(self.kernel, self.family, place_of(self._device(device)))

    def pack(self, array: Any, *, stream: Any = None) -> PackedOperand:
        """Packs the operand once, for launches of every size; waits until that is done.

        The array must not change from then on. Raises LaunchError.
        """
        name, reader = self.kernel.packed, READERS[type(array)]
        address, picture = reader.read(array)
        layout, packed = reader.layout(picture), PackedOperand(name, array)
        launches = self._launches(self.family, self.device or layout.kind)
        if isinstance(launches, FamilyLaunches):
            launches.pack(packed, address, reader.stream(array) if stream is None else stream_handle(stream))
        return packed

    def _unpacked(self, arrays: tuple[Any, ...]) -> tuple[PackedOperand | None, tuple[Any, ...]]:
        if not self.family.largest.options.get("packed_b"):
            return None, arrays
        place = self._tensors.index(self.kernel.packed)
        packed = arrays[place]
        if not isinstance(packed, PackedOperand):
            name = self.kernel.packed
            raise ArgumentError(name, "is not packed, and this problem has packed_b", f"Give what pack({name}) returns")
        return packed, (*arrays[:place], packed.array, *arrays[place + 1 :])

    def _planned(self, arrays: Sequence[Any], key: Hashable) -> tuple[_Plan, int]:
        """The plan for arrays that lie so, and their size; raises LaunchError where they fit no problem."""
        readers = [READERS[type(array)] for array in arrays]
        pictures = [reader.read(array)[1] for reader, array in zip(readers, arrays, strict=True)]
        layouts = [reader.layout(picture) for reader, picture in zip(readers, pictures, strict=True)]
        size = self._size_of(layouts)
        if size == 0:
            return _Plan(_nothing, _nothing, None), 0
        problem = arguments.laid_out(self.kernel, self.family.exact(size), layouts)
        kind, ordinal = arguments.one_place(self.kernel, layouts)
        try:
            launches = self._launches(self._family_of(problem), self.device or kind)
        except InvalidProblemError:
            exact, array = self._exact(size).bind(*arrays, is_fresh=False), arrays[0]
            return _Plan(lambda call, _ordinal: exact(call.addresses, array, call.scalars), _nothing, None), size
        keeps = all(reader.keeps_memory for reader in readers)
        plan = _Plan(launches.launch, readers[0].stream if kind == "cuda" else _nothing, ordinal if keeps else None)
        self._plans[key] = plan
        return plan, size

    def _size_of(self, layouts: Sequence[Layout]) -> int:
        name, axis = self._tensors[self._first], self._axes[self._first] or 0
        shape = layouts[self._first].shape
        if len(shape) <= axis:
            raise ArgumentError(name, f"has the shape {shape}", f"Give it {axis + 1} axes or more")
        return shape[axis]

    def _family_of(self, problem: Problem) -> Family:
        """The family that arrays which lie so belong to; raises InvalidProblemError where the size moves other axes."""
        return Family(self.kernel.with_size_at_launch(problem, self.family.axis), self.family.low, self.family.high)

    def _launches(self, family: Family, device: str) -> _Launches:
        place = device if device == self.device else device.partition(":")[0]
        with self._lock:
            key = family.hash, place
            if key not in self._on:
                if place == "cpu":
                    self._on[key] = HostFamilyLaunches(self.kernel, _to_high(family), self._source)
                else:
                    only = int(self.device.partition(":")[2]) if self.device else None
                    self._on[key] = FamilyLaunches(self.kernel, _to_high(family), self._source, only)
            return self._on[key]

    def _device(self, device: str | None) -> str:
        named = device or self.device
        try:
            return resolved(named or "cuda")
        except NoDeviceError:
            if named:
                raise
            return "cpu"


def _to_high(family: Family) -> Family:
    """The same with `largest` at the range's end, whatever size its arrays had."""
    return Family(family.at(family.high), family.low, family.high)


def _nothing(*_: Any) -> int:
    """The launch of arrays without an element, or the stream that the CPU has."""
    return 0
