"""Watches PyCUDA: functions of a SourceModule, called or prepared; functions of other modules without their source."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from .memory import as_bytes, seen
from .recorder import Function, Recorder

LEAST_ADDRESS = 1 << 20
"""Smaller numbers are not looked up as addresses."""

NOTHING = {"source": None, "options": (), "folders": ()}


class PyCuda:
    """The library as the recorder needs it; `arrays` are PyCUDA's living arrays, by address."""

    name = "PyCUDA"

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.errors: tuple[type[Exception], ...] = (driver.Error,)
        self.arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def event(self) -> Any:
        """A new event."""
        return self._driver.Event()

    def is_over(self, event: Any) -> bool:
        """Whether the GPU has passed the event."""
        return bool(event.query())

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """The milliseconds between two events."""
        return float(start.time_till(end))

    def synchronize(self) -> None:
        """Waits for the GPU."""
        self._driver.Context.synchronize()

    def described(self, argument: Any) -> dict[str, Any]:
        """The argument's description: of an array, of the memory at an address, or of a number."""
        if isinstance(argument, self._driver.ArgumentHandler):
            return _described(argument.array)
        if isinstance(argument, np.ndarray):  # managed memory, a number, or the bytes of a struct
            if isinstance(argument.base, self._driver.ManagedAllocationOrStub):
                return _described(argument)
            if argument.ndim or argument.dtype.kind not in "iuf":
                return {"kind": "struct"}
            return {"kind": "scalar", "dtype": argument.dtype.name, "value": argument.item()}
        if isinstance(argument, (float, np.floating)):
            dtype = argument.dtype.name if isinstance(argument, np.floating) else "float64"
            return {"kind": "scalar", "dtype": dtype, "value": float(argument)}
        return _described(argument) if _is_array(argument) else self._behind(argument)

    def _behind(self, argument: Any) -> dict[str, Any]:
        """The description of the memory that an address points to; of a number where it is no address."""
        address = _address(argument)
        if address is None:
            return {"kind": type(argument).__name__}
        if address in self.arrays:
            return _described(self.arrays[address])
        size_bytes = self._bytes_at(address) if address >= LEAST_ADDRESS else None
        if size_bytes is not None:
            return {"kind": "pointer", "shape": (size_bytes,), "bytes": size_bytes}
        dtype = argument.dtype.name if isinstance(argument, np.generic) else "int64"
        return {"kind": "scalar", "dtype": dtype, "value": address}

    def contents(self, argument: Any) -> Any:
        """The bytes of its memory; for an array that PyCUDA copies at the launch, those on the host."""
        described = self.described(argument)
        if "bytes" not in described:
            return None
        if isinstance(argument, (self._driver.ArgumentHandler, np.ndarray)):
            array = getattr(argument, "array", argument)
            return as_bytes(array, array.strides)
        host = np.empty(described["bytes"], np.uint8)
        self._driver.memcpy_dtoh(host, _address(argument))
        return host

    def constant(self, owner: Any, symbol: str) -> Any:
        """The bytes of a symbol of the SourceModule."""
        if owner is None:
            return None
        try:
            address, size_bytes = owner.get_global(symbol)
        except self.errors:
            return None
        host = np.empty(size_bytes, np.uint8)
        self._driver.memcpy_dtoh(host, address)
        return host

    def _bytes_at(self, address: int) -> int | None:
        try:
            first, size_bytes = self._driver.mem_get_address_range(address)
        except self.errors:
            return None
        return int(size_bytes) - (address - int(first))


def _is_array(argument: Any) -> bool:
    return hasattr(argument, "gpudata") and hasattr(argument, "dtype") and hasattr(argument, "shape")


def _address(argument: Any) -> int | None:
    if _is_array(argument):
        return None if argument.gpudata is None else int(argument.gpudata)
    try:
        return int(argument)
    except (TypeError, ValueError):
        return None


def _described(array: Any) -> dict[str, Any]:
    return seen(array.dtype, tuple(array.shape), tuple(array.strides))


class Driver:
    """Takes the place of PyCUDA's functions that make and launch kernels, module by module."""

    def __init__(self, driver: Any, recorder: Recorder) -> None:
        self._driver, self._recorder = driver, recorder
        self._watch_launches()
        get_function, pop, recorder_ = driver.Module.get_function, driver.Context.pop, recorder

        def named(module: Any, name: str) -> Any:
            function = get_function(module, name)
            function.tilewright_launches = recorder_.function(name, **NOTHING)
            return function

        def popped() -> Any:
            recorder_.settle(wait=recorder_.is_short_of_times)  # without a context nobody can read them
            return pop()

        driver.Module.get_function = named
        driver.Context.pop = staticmethod(popped)

    def watch_compiler(self, compiler: Any) -> None:
        """Watches `pycuda.compiler`, to know the source of each SourceModule."""
        recorder, module = self._recorder, compiler.SourceModule
        init, get_function = module.__init__, module.get_function

        def made(self: Any, source: Any, nvcc: str = "nvcc", options: Any = None, *given: Any, **named: Any) -> None:
            init(self, source, nvcc, options, *given, **named)
            folders = named.get("include_dirs") or (given[5] if len(given) > 5 else None) or ()
            facts = {"source": str(source), "options": tuple(options or ()), "folders": tuple(map(str, folders))}
            self.tilewright_facts = facts

        def found(self: Any, name: str) -> Any:
            function = get_function(self, name)
            function.tilewright_launches = recorder.function(name, **getattr(self, "tilewright_facts", NOTHING))
            function.tilewright_module = self
            return function

        module.__init__, module.get_function = made, found

    def watch_arrays(self, gpuarray: Any) -> None:
        """Watches `pycuda.gpuarray`, to know whose memory an address is."""
        init, library = gpuarray.GPUArray.__init__, self._recorder.library
        arrays = getattr(library, "arrays", {})

        def made(self: Any, *given: Any, **named: Any) -> None:
            init(self, *given, **named)
            if self.gpudata is not None and self.base is None:
                arrays[int(self.gpudata)] = self

        gpuarray.GPUArray.__init__ = made

    def _watch_launches(self) -> None:
        function = self._driver.Function
        function.__call__ = self._called(function.__call__)
        function.prepared_call = self._prepared(function.prepared_call, "prepared_call")
        function.prepared_timed_call = self._prepared(function.prepared_timed_call, "prepared_timed_call")
        function.prepared_async_call = self._prepared(function.prepared_async_call, "prepared_async_call")

    def _launches(self, function: Any, grid: Any) -> Any:
        """Records launches of a function that no watched module was asked for, such as one that C++ made, or of a grid
        that is a list.
        """
        if not hasattr(function, "tilewright_launches"):
            function.tilewright_launches = self._recorder.function("(unknown)", **NOTHING)
        return function.tilewright_launches[repr(grid)]

    def _called(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, *arguments: Any, **options: Any) -> Any:
            try:
                launches = function.tilewright_launches[options.get("grid")]
            except (AttributeError, TypeError):
                launches = self._launches(function, options.get("grid"))
            left = launches.left
            if left:
                launches.left = left - 1
                return real(function, *arguments, **options)
            geometry = (options.get("grid", (1, 1)), options.get("block"), options.get("shared", 0))
            launch = partial(real, function, *arguments, **options)  # no lambda: its cells would cost every launch
            return self._look(launches, function, geometry, arguments, launch)

        return call

    def _prepared(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        skipped = int(name == "prepared_async_call")  # its stream, before the arguments

        def call(function: Any, grid: Any, block: Any, *arguments: Any, **options: Any) -> Any:
            try:
                launches = function.tilewright_launches[grid]
            except (AttributeError, TypeError):
                launches = self._launches(function, grid)
            left = launches.left
            if left:
                launches.left = left - 1
                if options:
                    return real(function, grid, block, *arguments, **options)
                return real(function, grid, block, *arguments)
            geometry = (grid, block, options.get("shared_size", 0))
            given = arguments[skipped:]
            launch = partial(real, function, grid, block, *arguments, **options)
            return self._look(launches, function, geometry, given, launch)

        return call

    def _look(self, launches: Any, function: Any, geometry: Any, arguments: Any, launch: Callable[[], Any]) -> Any:
        """The result of the launch, with events right before and after it is handed to the driver."""
        if not (isinstance(geometry[0], tuple) and isinstance(geometry[1], tuple)):
            return launch()  # PyCUDA says what is wrong
        watched: Function = function.tilewright_launches

        def between(start: Any, end: Any) -> Any:
            if start is None:
                return launch()
            hand_over = function._launch_kernel  # noqa: SLF001 - where all of PyCUDA's ways to launch meet

            def timed(grid: Any, block: Any, buffer: Any, shared: int, stream: Any) -> None:
                start.record(stream)
                hand_over(grid, block, buffer, shared, stream)
                end.record(stream)

            function._launch_kernel = timed  # noqa: SLF001 - of this object alone
            try:
                return launch()
            finally:
                del function._launch_kernel  # noqa: SLF001

        owner = getattr(function, "tilewright_module", None)
        return self._recorder.look(launches, watched, geometry, arguments, between, owner=owner)


def watch(module: ModuleType, recorder: Recorder) -> Driver:
    """Watches `pycuda.driver` from now on."""
    return Driver(module, recorder)
