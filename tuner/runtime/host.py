"""Launches on the CPU device: a kernel's unmodified source as a library of this process, on the caller's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.arguments import check_addresses
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.errors import LaunchError
from tilewright.tuner.runtime.forks import ForkSafeLock

_ALIGNMENT = 16  # of a workspace, as kernels are promised


@cache
def host_place() -> TargetDevice:
    """The CPU of this machine; raises NoCompilerError where nothing can make code for it."""
    model = CpuDevice().model
    return TargetDevice(model.slug, model.limits)


class HostFunction:
    """One configuration, loaded. A launch is over when the call returns; launches of one library follow each other.

    A kernel whose threads wait for each other for ever ends the process, with a sentence on stderr.
    """

    def __init__(self, kernel: Kernel, problem: Problem, choice: Choice) -> None:
        try:
            path, _ = _builder(default_cache()).program(kernel, problem, choice.configuration, LIBRARY)
        except TrialFailure as failure:
            raise LaunchError(f"{kernel.name} {choice.configuration} does not compile: {failure.log}") from failure
        values, variant = choice.configuration.values, kernel.variant(choice.configuration.variant)
        launch = variant.launch(values, problem)
        self._kernel, self._problem = kernel, problem
        self._run = ctypes.CDLL(str(path)).host_library_launch
        self._lock = _lock_of(str(path))
        self._sizes = (ctypes.c_uint * 6)(*launch.grid, *launch.block)
        self._real = ctypes.c_float if problem.dtype == "float32" else ctypes.c_double
        self._is_scalar = [isinstance(argument, Scalar) for argument in kernel.arguments]
        self._workspace = _zeros(variant.workspace_bytes(values, problem))

    def launch(self, addresses: Sequence[int], scalars: tuple[float, ...], _stream: int, _ordinal: int | None) -> None:
        """One launch on arrays at these addresses; tensors and scalars each in the declared order.

        Raises ArgumentError for addresses that it must not run on.
        """
        check_addresses(self._kernel, self._problem, addresses)
        tensors, numbers = iter(addresses), iter(scalars)
        cells: list[ctypes._SimpleCData[float] | ctypes.c_void_p] = [
            self._real(next(numbers)) if is_scalar else ctypes.c_void_p(next(tensors)) for is_scalar in self._is_scalar
        ]
        if self._workspace is not None:
            cells.append(ctypes.c_void_p(self._workspace.ctypes.data))
        values = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        with self._lock:
            self._run(self._sizes, values)


@cache
def _builder(folder: Path) -> HostBuilder:
    return HostBuilder(find_compiler(), folder)


@cache
def _lock_of(_path: str) -> ForkSafeLock:
    return ForkSafeLock()


def _zeros(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
    if size_bytes == 0:
        return None
    memory = np.zeros(size_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size_bytes]
