"""A launcher that takes any size of one axis: `best("gemm", n=4096, k=4096)` takes any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.any_size.cuda import FamilyLaunches
from tilewright.tuner.runtime.any_size.places import axis_of
from tilewright.tuner.runtime.any_size.ranges import Ranges
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.arrays import arguments, dlpack
from tilewright.tuner.runtime.arrays.arguments import given_arrays, stream_handle
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.arrays.views import READERS, Layout
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import ArgumentError
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.first_use.first_calls import FirstCalls, first_calls
from tilewright.tuner.runtime.launcher import Launcher
from tilewright.tuner.runtime.launches.devices import device_or_default, place_of


class _Launches(Protocol):
    def launch(self, call: SizedCall, ordinal: int | None, /) -> None: ...

    def prepare(self, ordinal: int, /) -> None: ...


@dataclass(frozen=True)
class _Plan:
    """The launch plan for arrays of one layout and any size. `ordinal`, `first`: as in the plan of a `Launcher`."""

    launch: Callable[..., object]
    stream: Callable[[Any], int]
    ordinal: int | None
    first: FirstCalls | None = None


class BoundSize:
    """A launch of one size on arrays of certain layouts, by their addresses, as `BoundLaunch`."""

    __slots__ = ("_plan", "_scalars", "_size")

    def __init__(self, plan: _Plan, size: int, scalars: tuple[float, ...]) -> None:
        self._plan, self._size, self._scalars = plan, size, scalars

    def __call__(self, addresses: tuple[int, ...], array: Any, scalars: tuple[float, ...] = ()) -> None:
        """Launches on the stream that `array`, any of them, is worked on. Raises LaunchError."""
        self.of_size(self._size, addresses, array, scalars)

    def of_size(self, size: int, addresses: tuple[int, ...], array: Any, scalars: tuple[float, ...]) -> None:
        """Launches another size on the stream that `array` is worked on. Raises LaunchError."""
        if size:
            call = SizedCall(size, addresses, scalars or self._scalars, self._plan.stream(array))
            self._plan.launch(call, self._plan.ordinal)


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
        *,
        choices: Chooses,
    ) -> None:
        self.kernel, self.family, self.device = kernel, family, device
        self._source, self._exact, self._choices = source, exact, choices
        self._tensors = tuple(tensor.name for tensor in kernel.tensors)
        self._axes = [axis_of(tensor, family) for tensor in kernel.tensors]
        self._ranks = [len(tensor.shape(family.largest)) for tensor in kernel.tensors]
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
            scalars = self.scalars(**numbers)
        packed, arrays = self._unpacked(arrays)
        plan, size, addresses = self._located(arrays)
        if size:
            handle = plan.stream(arrays[0]) if stream is None else stream_handle(stream)
            call = SizedCall(size, tuple(addresses), scalars, handle, packed)
            if plan.first is None or stream is not None or plan.first.is_ours(size):
                plan.launch(call, plan.ordinal)
            else:
                plan.first(size, arrays, scalars, handle, lambda: plan.launch(call, plan.ordinal))
        return self._written(arrays)

    def _located(self, arrays: Sequence[Any]) -> tuple[_Plan, int, list[int]]:
        """The plan for the arrays' layout, shared by other sizes; their size and addresses. Raises LaunchError."""
        addresses, layout, size = [], [], -1
        for array, axis, rank in zip(arrays, self._axes, self._ranks, strict=True):
            reader = READERS[type(array)]
            address, picture = reader.read(array)
            addresses.append(address)
            place = 2 if reader.read is dlpack.borrow else 1  # of the shape in the picture
            shape = picture[place]  # type: ignore[index]
            if axis is None or len(shape) < rank:  # of fewer axes: all products of a batch share it
                layout.append(picture)
                continue
            if size not in {-1, shape[axis]}:
                size = 0
                break
            size = shape[axis]
            layout.append((picture[:place], shape[:axis], shape[axis + 1 :], picture[place + 1 :]))  # type: ignore[index]
        plan = self._plans.get(tuple(layout)) if size > 0 else None
        if plan is None:
            plan, size = self._planned(arrays, tuple(layout))
            addresses = [READERS[type(array)].read(array)[0] for array in arrays]
        return plan, size, addresses

    def scalars(self, **numbers: float) -> tuple[float, ...]:
        """Every scalar in the declared order, those that are not given at their defaults; raises ArgumentError."""
        return arguments.scalars_of(self.kernel, self.family.largest, numbers) if numbers else self._scalars

    def bind(self, *arrays: Any, is_fresh: bool, **numbers: float) -> BoundSize:  # noqa: ARG002 - as a Launcher's
        """The launch on arrays that lie as these do, which may then be given as addresses alone. Raises LaunchError."""
        plan, size, _ = self._located(arrays)
        return BoundSize(plan, size, self.scalars(**numbers))

    def choice(self, *arrays: Any) -> Choice:
        """The configuration that is launched on arrays of that size, and where it comes from."""
        return self.choice_for(*self.posed(*arrays))

    def posed(self, *arrays: Any) -> tuple[Problem, str]:
        """The problem that such arrays pose, and their device, resolved."""
        layouts = _layouts(arrays)
        kind, ordinal = arguments.one_place(self.kernel, layouts)
        where = self.device or (kind if ordinal is None else f"{kind}:{ordinal}")
        problem = arguments.laid_out(self.kernel, self.family.exact(self._size_of(layouts)), layouts)
        return problem, device_or_default(where)

    def choice_for(self, problem: Problem, device: str) -> Choice:
        """The `choice` for the problem that arrays pose on a resolved device."""
        family, size = self._family_or_none(problem), problem.shape[self.family.axis]
        if family is None:
            return self._exact(size).choice_for(problem, device)
        return self._source.ranges(self.kernel, family, place_of(device)).choice(size)

    def range_of(self, problem: Problem, device: str) -> Hashable:
        """A key shared by the problems that one range of the table serves."""
        family, size = self._family_or_none(problem), problem.shape[self.family.axis]
        if family is None:
            return self._exact(size).range_of(problem, device)
        return family.hash, self._source.ranges(self.kernel, family, place_of(device)).number(size)

    def is_known(self, problem: Problem, device: str) -> bool:
        """Whether `choice_for` is quick: no service, no prediction."""
        family = self._family_or_none(problem)
        if family is None:
            return self._exact(problem.shape[self.family.axis]).is_known(problem, device)
        return self._source.is_found(family, place_of(device))

    def look_for(self, problem: Problem, device: str) -> None:
        """Finds, in a thread beside the program's, what `choice_for` then returns; raises as it does."""
        family = self._family_or_none(problem)
        if family is None:
            self._exact(problem.shape[self.family.axis]).look_for(problem, device)
        else:
            self._source.ranges(self.kernel, family, place_of(device))

    def takes_turns(self, choice: Choice, *, is_beside: bool = True) -> bool:
        """Whether first calls decide between the choice and a library's call; never where rows must not differ."""
        return not self.family.batch_invariant and self._choices.takes_turns(choice, is_beside=is_beside)

    def first_use(self, _problem: Problem, _device: str, _choice: Choice) -> None:
        """Always None: each configuration is checked where it is launched."""

    def loading_of(self, problem: Problem, device: str) -> Callable[[], None] | None:
        """A function that loads, in a thread, what arrays pose; None where other sizes of the range had it loaded."""
        family, size = self._family_or_none(problem), problem.shape[self.family.axis]
        launches = family and self._launches(family, device if self.device else device.partition(":")[0])
        if launches and (not isinstance(launches, FamilyLaunches) or launches.has_loaded(size, device)):
            return None
        return partial(self.load_for, problem, device)

    def load_for(self, problem: Problem, device: str) -> None:
        """Compiles and loads for the arrays' problem on a resolved device; launches nothing. Raises LaunchError."""
        family, size = self._family_or_none(problem), problem.shape[self.family.axis]
        if family is None:
            self._exact(size).load_for(problem, device)
            return
        launches = self._launches(family, device if self.device else device.partition(":")[0])
        if isinstance(launches, FamilyLaunches):
            launches.load(size, int(device.partition(":")[2]))

    def prepare(self, device: str | None = None) -> None:
        """Compiles and loads for row-major arrays on that device, and computes every grid within the family's range.

        No launch of any size has to compile, look up or allocate afterwards, but for the first on another stream, which
        allocates a workspace.
        """
        name = device_or_default(device or self.device)
        ordinal = int(name.partition(":")[2]) if name != "cpu" else 0
        self._launches(self.family, name).prepare(ordinal)

    def ranges(self, device: str | None = None) -> Ranges:
        """The ranges of sizes, each with the configuration that serves it on that device."""
        return self._source.ranges(self.kernel, self.family, place_of(device_or_default(device or self.device)))

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
        """The plan for the arrays' layout, and their size; raises LaunchError where they fit no problem."""
        readers, layouts = [READERS[type(array)] for array in arrays], _layouts(arrays)
        size = self._size_of(layouts)
        if size == 0:
            return _Plan(_nothing, _nothing, None), 0
        problem, key = self._posed(layouts, size, key)
        kind, ordinal = arguments.one_place(self.kernel, layouts)
        try:
            launches = self._launches(self._family_of(problem), self.device or kind)
        except InvalidProblemError as error:
            if self.family.batch_invariant:
                name = self._tensors[self._first]
                raise ArgumentError(name, f"{error.reason}, as batch_invariant asks", "Make it row-major") from error
            exact, array = self._exact(size).bind(*arrays, is_fresh=False), arrays[0]
            return _Plan(lambda call, _ordinal: exact(call.addresses, array, call.scalars), _nothing, None), size
        keeps = all(reader.keeps_memory for reader in readers)
        stream = readers[0].stream if kind == "cuda" else _nothing
        may, stated = not self.family.batch_invariant, self.family.largest
        first = first_calls(self, self._choices, stated, arrays, kind) if may else None
        plan = _Plan(launches.launch, stream, ordinal if keeps else None, first)
        if key is not None:
            self._plans[key] = plan
        return plan, size

    def _posed(self, layouts: Sequence[Layout], size: int, key: Hashable) -> tuple[Problem, Hashable]:
        """The problem of arrays with these layouts, and the key under which its plan may be kept; None for no key.

        Along one element a stride says nothing, but other sizes have the same key: it is read as that of two.
        """
        problem = arguments.laid_out(self.kernel, self.family.exact(size), layouts)
        if size > 1:
            return problem, key
        two = [
            layout
            if axis is None or len(layout.shape) < rank
            else replace(layout, shape=(*layout.shape[:axis], 2, *layout.shape[axis + 1 :]))
            for layout, axis, rank in zip(layouts, self._axes, self._ranks, strict=True)
        ]
        try:
            return arguments.laid_out(self.kernel, self.family.exact(2), two), key
        except ArgumentError:
            return problem, None

    def _size_of(self, layouts: Sequence[Layout]) -> int:
        name, axis = self._tensors[self._first], self._axes[self._first] or 0
        shape = layouts[self._first].shape
        if len(shape) <= axis:
            raise ArgumentError(name, f"has the shape {shape}", f"Give it {axis + 1} axes or more")
        return shape[axis]

    def _family_of(self, problem: Problem) -> Family:
        """The family of arrays with these layouts; raises InvalidProblemError where the size moves other axes."""
        return self.family.of_problem(self.kernel.with_size_at_launch(problem, self.family.axis))

    def _family_or_none(self, problem: Problem) -> Family | None:
        """The family of the problem; None for a problem that is launched by its size alone."""
        try:
            return self._family_of(problem)
        except InvalidProblemError:
            return None

    def _launches(self, family: Family, device: str) -> _Launches:
        place = device if device == self.device else device.partition(":")[0]
        with self._lock:
            key = family.hash, place
            if key not in self._on:
                if place == "cpu":
                    from tilewright.tuner.runtime.any_size.host import HostFamilyLaunches  # noqa: PLC0415 - see Launcher

                    self._on[key] = HostFamilyLaunches(self.kernel, family, self._source)
                else:
                    only = int(self.device.partition(":")[2]) if self.device else None
                    self._on[key] = FamilyLaunches(self.kernel, family, self._source, only)
            return self._on[key]


def _layouts(arrays: Sequence[Any]) -> list[Layout]:
    return [reader.layout(reader.read(array)[1]) for array in arrays for reader in (READERS[type(array)],)]


def _nothing(*_: Any) -> int:
    """The launch of arrays without an element, or the stream that the CPU has."""
    return 0
