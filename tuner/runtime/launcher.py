"""A problem that can be launched: arrays in, checks, one launch on the device that they are on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.arrays import arguments
from tilewright.tuner.runtime.arrays.arguments import given_arrays, stream_handle
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.arrays.views import READERS, Reader
from tilewright.tuner.runtime.choice import Choice
from tilewright.tuner.runtime.errors import LaunchError, WrongDeviceError
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.first_use.first_calls import ONE_SIZE, FirstCalls, first_calls
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.launches.cuda import CudaLaunches
from tilewright.tuner.runtime.launches.devices import device_or_default, ordinal_of, place_of
from tilewright.tuner.turns.contest import octave_of


class _Launches(Protocol):
    def launch(
        self,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        ordinal: int | None,
        packed: PackedOperand | None = None,
        /,
    ) -> None: ...

    def prepare(self, ordinal: int, /) -> None: ...


@dataclass
class _Plan:
    """The launch plan for arrays of certain layouts.

    `ordinal`: their GPU; None where somebody may free the memory of an array, so that the driver is asked each time.
    `first`: the first calls, until ours is decided on.
    """

    pictures: list[Hashable]
    launch: Callable[..., object]
    stream: Callable[[Any], int]
    ordinal: int | None
    first: FirstCalls | None = None


class BoundLaunch:
    """A launch on arrays of certain layouts, given by their addresses: nothing else is looked at.

    For a caller that knows already how its arrays lie, and that they keep their memory.
    """

    __slots__ = ("_launch", "_ordinal", "_scalars", "_stream")

    def __init__(
        self,
        launch: Callable[..., object],
        scalars: tuple[float, ...],
        stream: Callable[[Any], int],
        ordinal: int | None,
    ) -> None:
        self._launch, self._scalars, self._stream, self._ordinal = launch, scalars, stream, ordinal

    def __call__(self, addresses: tuple[int, ...], array: Any, scalars: tuple[float, ...] = ()) -> None:
        """Launches on the stream that `array`, any of them, is worked on. Raises LaunchError.

        `scalars`: what `Launcher.scalars` returned, where they are not those that it was bound with.
        """
        self._launch(addresses, scalars or self._scalars, self._stream(array), self._ordinal)


class Launcher:
    """Launches of one problem. Any number of threads may call it.

    `device`: None for wherever the arrays are, "cpu", or "cuda:N" for that GPU only.
    """

    def __init__(self, kernel: Kernel, problem: Problem, device: str | None, choices: Chooses) -> None:
        if kernel.textures:
            reason = (
                f"{kernel.name} reads {kernel.textures[0].name} as a texture, and the launcher passes addresses only"
            )
            raise LaunchError(f"{reason}: make the texture objects and launch the configuration yourself")
        self.kernel, self.problem, self.device = kernel, problem, device
        self._choices = choices
        self._tensors = tuple(tensor.name for tensor in kernel.tensors)
        self._count = len(self._tensors)
        written = [place for place, tensor in enumerate(kernel.tensors) if tensor.role != "input"]
        self._written = itemgetter(*written)  # the output, or a tuple of several
        self._scalars = tuple(arguments.default_scalars(kernel, problem).values())
        self._is_empty = all(0 in tensor.shape(problem) for tensor in kernel.outputs)
        self._plans: dict[tuple[Hashable, ...], _Plan] = {}
        self._last = _Plan([], _nothing, _nothing, None)
        self._on: dict[tuple[Problem, str], _Launches] = {}
        self._lock = ForkSafeLock()

    def __call__(self, *arrays: Any, stream: Any = None, **named: Any) -> Any:
        """Launches on these arrays, tensors in the declared order or by name, scalars by name; returns the output.

        Where there are several: a tuple of them.

        `stream`: None for the one that the arrays' framework works on, a handle, or a stream object of PyCUDA, torch or
        CuPy. Raises LaunchError, after which nothing has run.
        """
        scalars = self._scalars
        if named or len(arrays) != self._count:
            arrays, scalars = self._sorted_out(arrays, named)
        addresses, pictures = [], []  # this loop takes half the time of anything shorter
        for array in arrays:
            address, picture = READERS[type(array)].read(array)
            addresses.append(address)
            pictures.append(picture)
        plan = self._last  # one assignment, so that another thread's is as good
        if plan.pictures != pictures:
            plan = self._last = self._plans.get(tuple(pictures)) or self._planned(arrays, pictures)
        handle = plan.stream(arrays[0]) if stream is None else stream_handle(stream)
        first = plan.first
        if first is None or stream is not None:
            plan.launch(tuple(addresses), scalars, handle, plan.ordinal)
        else:
            given = tuple(addresses), scalars, handle, plan.ordinal
            first(ONE_SIZE, arrays, scalars, handle, lambda: plan.launch(*given))
            plan.first = None if first.is_ours(ONE_SIZE) else first
        return self._written(arrays)

    def scalars(self, **numbers: float) -> tuple[float, ...]:
        """Every scalar in the declared order, those that are not given at their defaults; raises ArgumentError."""
        return arguments.scalars_of(self.kernel, self.problem, numbers) if numbers else self._scalars

    def bind(self, *arrays: Any, is_fresh: bool, **numbers: float) -> BoundLaunch:
        """The launch on arrays that lie as these do, which may then be given as addresses alone. Raises LaunchError.

        `is_fresh`: outputs will be new each time, so that nothing else lies in them.
        """
        arrays, scalars = self._sorted_out(arrays, numbers)
        readers = [READERS[type(array)] for array in arrays]
        pictures = [reader.read(array)[1] for reader, array in zip(readers, arrays, strict=True)]
        problem, kind, ordinal = self._laid_out(readers, pictures)
        plan = self._planned(arrays, pictures)
        launches = None if self._is_empty else self._launches(problem, self.device or kind)
        if is_fresh and plan.ordinal is not None and isinstance(launches, CudaLaunches):
            return BoundLaunch(launches.launch_fresh, scalars, plan.stream, ordinal)
        return BoundLaunch(plan.launch, scalars, plan.stream, plan.ordinal)

    def prepare(self, *arrays: Any, device: str | None = None, **named: Any) -> None:
        """Compiles, loads and verifies, so that no launch on such arrays has to; waits until that is done.

        Arrays as for `choice`; nothing of them is read. A configuration that was not verified at this shape is launched
        on random numbers, and withdrawn where some rows of the results are wrong. Raises LaunchError.
        """
        if len(arrays) == 1 and isinstance(arrays[0], str):
            self.prepare(device=arrays[0])
        elif not self._is_empty:
            self.prepare_for(*self._posed(arrays, named, device))

    def prepare_for(self, problem: Problem, device: str) -> None:
        """Does `prepare` for the problem that arrays pose on a resolved device."""
        self._launches(problem, device).prepare(ordinal_of(device) if device != "cpu" else 0)

    def loading_of(self, problem: Problem, device: str) -> Callable[[], None]:
        """A function that loads, in a thread, what arrays pose."""
        return partial(self.load_for, problem, device)

    def load_for(self, problem: Problem, device: str) -> None:
        """Compiles and loads for what arrays pose on a resolved device; launches nothing. Raises LaunchError."""
        launches = self._launches(problem, device)
        if isinstance(launches, CudaLaunches):
            launches.load(ordinal_of(device))

    def choice(self, *arrays: Any, device: str | None = None, **named: Any) -> Choice:
        """The configuration that is launched on such arrays, and where it comes from.

        Transposed views have another one. Without arrays: for row-major ones on that device, whose name may also stand
        alone, as in `choice("cuda:0")`.
        """
        if len(arrays) == 1 and isinstance(arrays[0], str):
            return self.choice(device=arrays[0])
        return self.choice_for(*self._posed(arrays, named, device))

    def choice_for(self, problem: Problem, device: str) -> Choice:
        """The `choice` for the problem that arrays pose on a resolved device."""
        return self._choices.choose(self.kernel, problem, place_of(device))

    def range_of(self, problem: Problem, device: str) -> Hashable:
        """A key shared by problems whose first calls decide together; a choice without a time decides alone."""
        choice = self.choice_for(problem, device)
        return octave_of(self.kernel, problem, choice.configuration) if choice.time_ms else problem

    def takes_turns(self, choice: Choice, *, is_beside: bool = True) -> bool:
        """Whether the first calls decide between the choice and a library's call."""
        return self._choices.takes_turns(choice, is_beside=is_beside)

    def is_known(self, problem: Problem, device: str) -> bool:
        """Whether `choice` is quick, for what arrays pose on a resolved device: no service, no prediction."""
        return self._choices.is_known(self.kernel, problem, place_of(device))

    def look_for(self, problem: Problem, device: str) -> None:
        """Finds, in a thread beside the program's, what `choice` then returns; raises as `choice`."""
        self._choices.look_for(self.kernel, problem, place_of(device))

    def first_use(self, problem: Problem, device: str, choice: Choice) -> FirstUse | None:
        """The check of the choice for these arrays on a resolved device; None where none is needed."""
        return self._choices.first_use(self.kernel, problem, place_of(device), choice)

    def posed(self, *arrays: Any) -> tuple[Problem, str]:
        """The problem that such arrays pose, and their device, resolved."""
        return self._posed(arrays, {}, None)

    def _posed(self, arrays: Sequence[Any], named: Mapping[str, Any], device: str | None) -> tuple[Problem, str]:
        """The problem that arrays pose, or without any the launcher's own, and the device, resolved."""
        if not arrays and not named:
            return self.problem, device_or_default(device or self.device)
        arrays, _ = self._sorted_out(arrays, named)
        readers = [READERS[type(array)] for array in arrays]
        problem, kind, ordinal = self._laid_out(readers, [r.read(a)[1] for r, a in zip(readers, arrays, strict=True)])
        return problem, device_or_default(device or (kind if ordinal is None else f"{kind}:{ordinal}"))

    def _planned(self, arrays: Sequence[Any], pictures: list[Hashable]) -> _Plan:
        readers = [READERS[type(array)] for array in arrays]
        problem, kind, ordinal = self._laid_out(readers, pictures)
        launch = _nothing if self._is_empty else self._launches(problem, self.device or kind).launch
        stream = readers[0].stream if kind == "cuda" else _nothing
        first = None if self._is_empty else first_calls(self, self._choices, self.problem, arrays, kind)
        plan = _Plan(pictures, launch, stream, ordinal if all(r.keeps_memory for r in readers) else None, first)
        self._plans[tuple(pictures)] = plan
        return plan

    def _laid_out(self, readers: Sequence[Reader], pictures: Sequence[Hashable]) -> tuple[Problem, str, int | None]:
        """The problem as these arrays lie, and where they are: "cpu" or "cuda" with the GPU's number, if they tell."""
        layouts = [reader.layout(picture) for reader, picture in zip(readers, pictures, strict=True)]
        problem = arguments.laid_out(self.kernel, self.problem, layouts)
        kind, ordinal = arguments.one_place(self.kernel, layouts)
        self._check_device(kind, ordinal)
        return problem, kind, ordinal

    def _check_device(self, kind: str, ordinal: int | None) -> None:
        is_elsewhere = self.device is not None and (
            self.device.partition(":")[0] != kind or (ordinal is not None and self.device != f"cuda:{ordinal}")
        )
        if is_elsewhere:
            where = kind if ordinal is None else f"cuda:{ordinal}"
            raise WrongDeviceError(f"this launcher is for {self.device}, but the arrays are on {where}")

    def _launches(self, problem: Problem, device: str) -> _Launches:
        with self._lock:
            key = problem, device if device == self.device else device.partition(":")[0]
            if key not in self._on:
                if device == "cpu":
                    from tilewright.tuner.runtime.launches import host  # noqa: PLC0415 - 50 ms that a GPU's launch does not need

                    self._on[key] = host.HostLaunches(self.kernel, problem, self._choices)
                else:
                    only = ordinal_of(self.device) if self.device else None
                    self._on[key] = CudaLaunches(self.kernel, problem, self._choices, only)
            return self._on[key]

    def _sorted_out(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """Tensors and scalars in the declared order."""
        given, numbers = given_arrays(self.kernel, self._tensors, arrays, named)
        return given, self.scalars(**numbers)


def _nothing(*_: Any) -> int:
    """Does nothing: the launch of a problem whose output has no element."""
    return 0
