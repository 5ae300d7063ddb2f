"""All launches of one configuration in order, on NumPy's memory; what the host's compiler can do here."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.kernels.kernel import Kernel, Scalar
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu.bench import CpuBench
from tilewright.tuner.devices.cpu.build import LIBRARY, HostBuilder, default_cache
from tilewright.tuner.devices.cpu.check import CheckReport
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.errors import NoCompilerError


class LaunchesOnHost:
    """`copied` holds the sources, with a function `on_host` that takes a launch's number last; compiling takes longest.

    Each byte of the workspace is `workspace_byte` at first.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, configuration: Configuration, copied: Path, workspace_byte: int
    ) -> None:
        variant, values = kernel.variant(configuration.variant), configuration.values
        single = replace(variant, before=())
        on_host = replace(kernel, folder=copied, entry="on_host", variants=(single,), default_variant=single.name)
        path, _ = HostBuilder(find_compiler(), default_cache()).program(on_host, problem, configuration, LIBRARY)
        self._run, self._kernel = ctypes.CDLL(str(path)).host_library_launch, kernel
        launches = variant.launches(kernel.entry, values, problem)
        self._sizes = [(ctypes.c_uint * 6)(*launch.grid, *launch.block) for _, launch in launches]
        memory = np.full(variant.workspace_bytes(values, problem) + 4096, workspace_byte, np.uint8)
        self._workspace = memory[-memory.ctypes.data % 4096 :][: len(memory) - 4096]

    def launch(self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, float]) -> None:
        """All launches in order."""
        number = ctypes.c_uint()
        cells: list[Any] = [
            ctypes.c_float(scalars[a.name]) if isinstance(a, Scalar) else ctypes.c_void_p(arrays[a.name].ctypes.data)
            for a in self._kernel.arguments
        ]
        cells += [ctypes.c_void_p(self._workspace.ctypes.data), number]
        values = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        for number.value, sizes in enumerate(self._sizes):
            self._run(sizes, values)


SANITIZING = pytest.mark.timeout(400)
"""For tests that sanitize: at first ziglang builds the sanitizer's library, minutes where the machine is busy."""


def needs_compiler() -> str:
    """The name of the host's compiler; a test is skipped on a machine that has none."""
    try:
        return find_compiler().name
    except NoCompilerError:
        pytest.skip("needs a C++ compiler")


def needs_cpp_library() -> None:
    """Skips the test where a source cannot include C++'s own headers."""
    if needs_compiler() == "ziglang":
        pytest.skip("ziglang is used without a C++ library: install g++")


def needs_line_numbers() -> None:
    """Skips the test where a sanitizer's report does not name the lines."""
    if needs_compiler() == "ziglang":
        pytest.skip("ziglang's programs have no AddressSanitizer and name no lines: install g++")


def checked(bench: CpuBench, configuration: Configuration, mode: str) -> CheckReport:
    """The sanitizer's report; skips the test where the compiler makes no such programs."""
    try:
        return bench.check(configuration, mode)
    except NoCompilerError as missing:
        pytest.skip(str(missing).splitlines()[0][:80])
