"""Launches on the CPU device: a kernel's unmodified source as a library of this process, on the caller's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.cpu.library import call_here
from tilewright.tuner.errors import OwnFunctionError, TrialFailure
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.arrays.arguments import check_addresses
from tilewright.tuner.runtime.arrays.packed import PackedOperand
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.first_use.chooses import Chooses
from tilewright.tuner.runtime.first_use.drawn import HostMemory, verified
from tilewright.tuner.runtime.first_use.first_use import Finding, FirstUse
from tilewright.tuner.runtime.launches.library_calls import call_of
from tilewright.tuner.runtime.memory.host import HostWorkspace
from tilewright.tuner.runtime.memory.room import HOST, ROOM, NoRoomError, limit_bytes

_MOST_CHECKED = 256  # combinations of addresses, as on a GPU


def host_place() -> TargetDevice:
    """The CPU of this machine; raises NoCompilerError where nothing can make code for it."""
    return _place(limit_bytes())


@cache
def _place(most_workspace_bytes: int | None) -> TargetDevice:
    model = CpuDevice().model
    return TargetDevice(model.slug, model.limits, most_workspace_bytes)


class HostLaunches:
    """Launches of one problem on the CPU; a configuration that was not verified is checked at its first use."""

    def __init__(self, kernel: Kernel, problem: Problem, choices: Chooses) -> None:
        self._kernel, self._problem, self._choices = kernel, problem, choices
        self._lock = ForkSafeLock()
        self._use: FirstUse | None = None
        self._function: _Loaded | None = None
        self._loaded()

    def launch(
        self,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        stream: int,
        ordinal: int | None,
        packed: PackedOperand | None = None,
    ) -> None:
        """Launches as `HostFunction.launch` does."""
        function, use = self._function or self._loaded(), self._use
        if use is None or use.state != "waiting" or not use.take():
            try:
                function.launch(addresses, scalars, stream, ordinal, packed)
            except NoRoomError:  # there was some when it was loaded; what is loaded now takes none
                self._loaded(anew=True).launch(addresses, scalars, stream, ordinal, packed)
            return
        from tilewright.tuner.runtime.first_use.rows import HostRows  # noqa: PLC0415 - seldom needed

        rows = HostRows(self._kernel, self._problem)
        if rows.why_not:
            use.give_up(rows.why_not)
            function.launch(addresses, scalars, stream, ordinal, packed)
            return
        try:
            check_addresses(self._kernel, self._problem, addresses)  # before anything reads them
            rows.before(addresses, scalars)
            function.launch(addresses, scalars, stream, ordinal, packed)
        except BaseException:
            use.release()
            raise
        try:
            finding = rows.after(addresses)
        except OwnFunctionError as error:  # the call itself has done what it should
            use.give_up(str(error))
        else:
            use.settle(finding)

    def prepare(self, _ordinal: int) -> None:
        """Compiles, loads and verifies."""
        while True:
            function, use = self._function or self._loaded(), self._use
            if use is None or verified(use, partial(self._launch_on, function)):
                return
            self._withdraw(use)

    @staticmethod
    def _launch_on(function: _Loaded, memory: Sequence[HostMemory], scalars: tuple[float, ...]) -> None:
        function.launch(tuple(one.ctypes.data for one in memory), scalars, 0, None)

    def _withdraw(self, use: FirstUse, _finding: Finding | None = None) -> None:
        """Loads another configuration for the next launch."""
        with self._lock:
            if self._use is use:
                self._function = self._use = None

    def _loaded(self, *, anew: bool = False) -> _Loaded:
        with self._lock:
            if self._function is None or anew:
                self._function, self._use = self._choices.loaded(
                    self._kernel, self._problem, host_place(), self._with_use
                )
            return self._function

    def _with_use(self, choice: Choice) -> tuple[_Loaded, FirstUse | None]:
        if call_of(self._problem, choice)[0] is not None:
            return HostLibrary(self._kernel, self._problem), None
        use = self._choices.first_use(self._kernel, self._problem, host_place(), choice)
        if use is not None:
            use.listen(self._withdraw)
        return HostFunction(self._kernel, self._problem, choice), use


class HostLibrary:
    """The library's call. A launch is over when it returns."""

    def __init__(self, kernel: Kernel, problem: Problem) -> None:
        self._kernel, self._problem = kernel, problem
        self._scalars = [argument.name for argument in kernel.arguments if isinstance(argument, Scalar)]

    def launch(self, addresses: tuple[int, ...], scalars: tuple[float, ...], *_rest: object) -> None:
        """Calls the library on arrays at these addresses; see `HostFunction.launch`."""
        check_addresses(self._kernel, self._problem, addresses)
        names = (tensor.name for tensor in self._kernel.tensors)
        numbers = dict(zip(self._scalars, scalars, strict=True))
        call_here(self._problem, numbers, dict(zip(names, addresses, strict=True)))


class HostFunction:
    """One configuration, loaded. A launch is over when the call returns; launches of one library never overlap.

    A kernel whose threads wait for each other for ever ends the process, with a sentence on stderr.
    """

    def __init__(self, kernel: Kernel, problem: Problem, choice: Choice) -> None:
        try:
            path, _ = builder_of_process().program(kernel, problem, choice.configuration, LIBRARY)
        except TrialFailure as failure:
            raise LaunchError(f"{kernel.name} {choice.configuration} does not compile: {failure.log}") from failure
        values, variant = choice.configuration.values, kernel.variant(choice.configuration.variant)
        sizes = [size for _, one in variant.launches("", values, problem) for size in (*one.grid, *one.block)]
        self._kernel, self._problem = kernel, problem
        library = ctypes.CDLL(str(path))
        self._run, self._fill = library.host_library_launch, library.host_library_fill
        self._constants = {tensor.symbol: tensor.size_bytes(problem) for tensor in kernel.constants}
        self._lock = lock_of(str(path))
        self._sizes = (ctypes.c_uint * len(sizes))(*sizes)
        self._types = [
            np.ctypeslib.as_ctypes_type(argument.dtype_for(problem)) if isinstance(argument, Scalar) else None
            for argument in kernel.parameters
        ]
        self._checked: set[tuple[int, ...]] = set()
        self._workspace_bytes = variant.workspace_bytes(values, problem)
        ROOM.check(HOST, self._workspace_bytes)
        self._workspace = HostWorkspace()

    def launch(
        self,
        addresses: tuple[int, ...],
        scalars: tuple[float, ...],
        _stream: int,
        _ordinal: int | None,
        _packed: PackedOperand | None = None,
    ) -> None:
        """One launch on arrays at these addresses; tensors and scalars each in the declared order.

        Raises ArgumentError for addresses that it must not run on.
        """
        if addresses not in self._checked:  # what is checked is the addresses alone, and models use them again
            check_addresses(self._kernel, self._problem, addresses)
            if len(self._checked) >= _MOST_CHECKED:
                self._checked.clear()
            self._checked.add(addresses)
        placed = list(zip(self._kernel.tensors, addresses, strict=True))
        tensors, numbers = iter(at for tensor, at in placed if not tensor.symbol), iter(scalars)
        cells: list[ctypes._SimpleCData[Any]] = [
            ctypes.c_void_p(next(tensors)) if scalar is None else scalar(next(numbers)) for scalar in self._types
        ]
        if self._workspace_bytes:
            workspace = self._workspace.memory(self._workspace_bytes)
            cells.append(ctypes.c_void_p(workspace.ctypes.data))
        values = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        with self._lock:
            for number, (tensor, at) in enumerate(one for one in placed if one[0].symbol):
                if not self._fill(number, ctypes.c_void_p(at), ctypes.c_size_t(self._constants[tensor.symbol])):
                    raise LaunchError(
                        f"{tensor.symbol} in the source of {self._kernel.name} is smaller than {tensor.name}"
                    )
            self._run(self._sizes, values)


_Loaded = HostFunction | HostLibrary


def builder_of_process() -> HostBuilder:
    """The builder with the cache that the environment names."""
    return _builder(default_cache())


@cache
def _builder(folder: Path) -> HostBuilder:
    return HostBuilder(find_compiler(), folder)


@cache
def lock_of(_path: str) -> ForkSafeLock:
    """The lock of the library at that path, so that its launches never overlap."""
    return ForkSafeLock()
