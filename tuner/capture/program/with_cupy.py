"""Watches CuPy: RawKernel, and the functions of a RawModule."""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import numpy as np

from .memory import as_bytes, seen
from .recorder import Recorder

PYTHON_NUMBERS = {bool: "uint8", int: "int64", float: "float64", complex: "complex128"}


class CuPy:
    """The library as the recorder needs it."""

    name = "CuPy"

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.errors: tuple[type[Exception], ...] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
        )

    def event(self) -> Any:
        """A new event."""
        return self._cupy.cuda.Event()

    def is_over(self, event: Any) -> bool:
        """Whether the GPU has passed the event."""
        return bool(event.done)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """The milliseconds between two events."""
        return float(self._cupy.cuda.get_elapsed_time(start, end))

    def synchronize(self) -> None:
        """Waits for the GPU."""
        self._cupy.cuda.runtime.deviceSynchronize()

    def is_capturing(self) -> bool:
        """Whether the current stream's launches become a graph, which has no times and no contents."""
        return bool(self._cupy.cuda.get_current_stream().is_capturing())

    def described(self, argument: Any) -> dict[str, Any]:
        """The argument's description: an array's shape and dtype, or the number as CuPy passes it."""
        if isinstance(argument, self._cupy.ndarray):
            return seen(argument.dtype, argument.shape, argument.strides)
        dtype = PYTHON_NUMBERS.get(type(argument)) or (argument.dtype.name if _is_number(argument) else None)
        if dtype is None or dtype.startswith("complex"):
            return {"kind": type(argument).__name__}
        return {"kind": "scalar", "dtype": "uint8" if dtype == "bool" else dtype, "value": np.asarray(argument).item()}

    def contents(self, argument: Any) -> Any:
        """The bytes of an array; None for an argument that is not an array."""
        return as_bytes(argument.get(), argument.strides) if isinstance(argument, self._cupy.ndarray) else None

    def constant(self, owner: Any, symbol: str) -> Any:
        """The bytes of a symbol of a RawModule; nobody can ask a RawKernel for one."""
        if owner is None:
            return None
        try:
            memory = owner.get_global(symbol)
        except self.errors:
            return None
        size_bytes = memory.mem.size
        return self._cupy.ndarray((size_bytes,), np.uint8, memory).get()


def _is_number(argument: Any) -> bool:
    return isinstance(argument, np.generic) and argument.dtype.kind in "biuf"


def _facts(kernel: Any) -> dict[str, Any]:
    options = tuple(kernel.options or ())
    return {"source": kernel.code, "options": options, "folders": ()}


def watch(cupy: ModuleType, recorder: Recorder) -> None:
    """Puts classes in the place of RawKernel and RawModule that count and look at what is launched."""
    watcher = Watcher(cupy, recorder)
    kernel = _kernel_class(cupy, watcher)
    module = _module_class(cupy, _function_class(kernel, watcher))
    for made, real in ((kernel, cupy.RawKernel), (module, cupy.RawModule)):
        made.__name__ = made.__qualname__ = real.__name__
        made.__module__ = real.__module__
    cupy.RawKernel, cupy.RawModule = kernel, module  # type: ignore[attr-defined]


class Watcher:
    """The part that the classes of CuPy's kernels share; `launch` is CuPy's own."""

    def __init__(self, cupy: Any, recorder: Recorder) -> None:
        self.launch: Any = cupy.RawKernel.__call__
        self.recorder, self._library = recorder, recorder.library

    def look(self, launches: Any, kernel: Any, watched: Any, geometry: Any, arguments: Any) -> Any:
        """The result of the launch, which is recorded; `watched`: its Function, and its RawModule or None."""
        launch, (grid, block, shared) = self.launch, geometry
        if cast("CuPy", self._library).is_capturing():
            return launch(kernel, grid, block, arguments, shared_mem=shared)
        kernel.kernel  # noqa: B018 - compiled now, and not between the events

        def between(start: Any, end: Any) -> Any:
            if start is None:
                return launch(kernel, grid, block, arguments, shared_mem=shared)
            start.record()
            result = launch(kernel, grid, block, arguments, shared_mem=shared)
            end.record()
            return result

        whole = (tuple(map(int, grid)), tuple(map(int, block)), shared)
        return self.recorder.look(launches, watched[0], whole, arguments, between, owner=watched[1])


def _kernel_class(cupy: Any, watcher: Watcher) -> Any:
    launch = watcher.launch

    class Kernel(cupy.RawKernel):  # type: ignore[misc]
        """CuPy's RawKernel with its launches counted."""

        tilewright_launches: Any

        def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> Any:
            try:
                launches = self.tilewright_launches[grid]
            except (AttributeError, TypeError):
                self.tilewright_launches = watcher.recorder.function(self.name, **_facts(self))
                launches = self.tilewright_launches[tuple(grid)]
            left = launches.left
            if not left:
                watched = self.tilewright_launches, None
                return watcher.look(launches, self, watched, (grid, block, shared_mem), args)
            launches.left = left - 1
            return (
                launch(self, grid, block, args, shared_mem=shared_mem)
                if shared_mem
                else launch(self, grid, block, args)
            )

    return Kernel


def _function_class(kernel_class: Any, watcher: Watcher) -> Any:
    launch = watcher.launch

    class FunctionOfModule:
        """A RawKernel that a RawModule made: passes everything on to it, and counts its launches."""

        __class__ = property(lambda _: kernel_class)  # an instance to whoever asks

        def __init__(self, kernel: Any, name: str, module: Any) -> None:
            self.__dict__["tilewright"] = kernel, watcher.recorder.function(name, **_facts(module)), module

        def __getattr__(self, name: str) -> Any:
            return getattr(self.tilewright[0], name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.tilewright[0], name, value)

        def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> Any:
            kernel, function, module = self.tilewright
            try:
                launches = function[grid]
            except TypeError:
                launches = function[tuple(grid)]
            left = launches.left
            if not left:
                return watcher.look(launches, kernel, (function, module), (grid, block, shared_mem), args)
            launches.left = left - 1
            return (
                launch(kernel, grid, block, args, shared_mem=shared_mem)
                if shared_mem
                else launch(kernel, grid, block, args)
            )

    return FunctionOfModule


def _module_class(cupy: Any, function_class: Any) -> Any:
    class Module(cupy.RawModule):  # type: ignore[misc]
        """CuPy's RawModule with its functions' launches counted."""

        def get_function(self, name: str) -> Any:
            """The function, under the name that it was asked for."""
            return function_class(super().get_function(name), name, self)

    return Module
