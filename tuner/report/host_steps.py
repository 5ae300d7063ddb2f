"""The two steps on the host: a loop on one thread, made by the host's C++ compiler, and NumPy's BLAS on all cores."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.dtypes import REAL
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.arrays import HostArray, random_arrays, scalar_values
from tilewright.tuner.devices.cpu.compile import find_compiler
from tilewright.tuner.errors import NoCompilerError, TunerError
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.expected import expected_of
from tilewright.tuner.report.rows import Time

VERIFIED_ROWS = 32
"""Rows of the output that are held against the reference: each is computed like the others, and all would take longer
in float64 than what is timed."""

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 11
_ROUND_S = 0.002  # a round lasts at least this long: short calls are repeated inside it
_ENOUGH_S = 0.5  # of rounds; then those that there are have to do
_SLOWEST_GFLOPS = 0.2  # before anything was measured

Arrays = Mapping[str, HostArray]
Call = Callable[[], None]


class WrongHostResultError(TunerError):
    """A step on the host does not compute what the reference says."""


class HostSteps:
    """Times of both steps at growing sizes. A step that would take longer than `limit_s` a call is left out."""

    def __init__(self, kernel: Kernel, limit_s: float) -> None:
        self.kernel, self.limit_s = kernel, limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-loops-")
        self._gflops: dict[str, float] = {}

    def close(self) -> None:
        """Removes the compiled loop."""
        self._folder.cleanup()

    def allows(self, place: str, problem: Problem) -> bool:
        """Whether this step at this problem is expected to stay below the limit."""
        expected = self._gflops.get(place, _SLOWEST_GFLOPS)
        # Loops slow down as arrays outgrow the caches, three times and more; BLAS does not.
        limit_s = self.limit_s / 3 if place == "loop" else self.limit_s
        return self.kernel.estimated_flops(problem) / (expected * 1e9) <= limit_s

    def time(self, place: str, problem: Problem, seed: int) -> tuple[Time, float | None]:
        """The time, after the result was found right, and the worst error over its bound.

        The loop is timed in CPU seconds of its thread, BLAS in wall time. Raises NoCompilerError, WrongHostResultError.
        """
        arrays = random_arrays(self.kernel, problem, seed)
        out: HostArray = np.full(self.kernel.output.shape(problem), np.nan, problem.dtype)
        call = self._loop(problem, arrays, out) if place == "loop" else _blas(problem, arrays, out)
        call()
        ratio = self._checked(problem, arrays, out)
        times = rounds_ms(call, time.thread_time if place == "loop" else time.perf_counter)
        interval = statistics.median_interval(times)
        median_ms = statistics.median(times)
        self._gflops[place] = self.kernel.estimated_flops(problem) / median_ms / 1e6
        return Time(median_ms, interval.low, interval.high, len(times)), ratio

    def _checked(self, problem: Problem, arrays: Arrays, out: HostArray) -> float | None:
        rows = min(VERIFIED_ROWS, problem.shape["m"])
        part = replace(problem, axes=(("m", rows), *((a, s) for a, s in problem.axes if a != "m")))
        first = self.kernel.tensors[0].name  # the factor whose rows are the output's
        cut = {name: array[:rows] if name == first else array for name, array in arrays.items()}
        scalars = dict.fromkeys(scalar_values(self.kernel, problem), 0.0) | {"alpha": 1.0}
        verification = expected_of(self.kernel, part, cut, scalars).compare({self.kernel.output.name: out[:rows]})
        if not verification.is_right:
            raise WrongHostResultError(f"{problem} on the host: {verification.message()}")
        return verification.bound_ratio

    def _loop(self, problem: Problem, arrays: Arrays, out: HostArray) -> Call:
        function = getattr(self._library(problem.dtype), f"{problem.kernel}_loop")
        function.restype = None
        sizes = [ctypes.c_long(problem.shape.get(axis, 0)) for axis in ("m", "n", "k")]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays.values(), out)]
        return functools.partial(function, *sizes, *pointers)

    def _library(self, dtype: str) -> ctypes.CDLL:
        path = Path(self._folder.name) / f"loops_{dtype}.so"
        if not path.exists():
            compiler = find_compiler()
            source = Path(__file__).with_name("host_loops.cpp")
            made = ["-shared", "-fPIC", f"-DREAL={REAL[dtype]}", str(source), "-o", str(path)]
            command = [*compiler.command, *compiler.flags("fast"), *made]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode:
                raise NoCompilerError(
                    f"{compiler.name} {compiler.version} cannot compile the loop: {done.stderr[-500:]}"
                )
        return ctypes.CDLL(str(path))


def rounds_ms(call: Call, clock: Callable[[], float]) -> list[float]:
    """Times of one call in ms, a round each; the first call was made before."""
    started = clock()
    call()
    one_s = max(clock() - started, 1e-7)
    repeats = max(1, math.ceil(_ROUND_S / one_s))
    times = [one_s * 1e3] if repeats == 1 else []  # what lasts that long is warm after the call before
    while len(times) < _LEAST_ROUNDS or (len(times) < _MOST_ROUNDS and sum(times) * repeats < 1e3 * _ENOUGH_S):
        started = clock()
        for _ in range(repeats):
            call()
        # CPU clocks tick: what took no time took less than a tick.
        times.append(max(clock() - started, 1e-9) * 1e3 / repeats)
    return times


def blas_name() -> str:
    """NumPy, its BLAS, and how many threads this process may have."""
    configuration: Any = np.show_config(mode="dicts")
    blas = configuration["Build Dependencies"]["blas"]
    version = ".".join(str(blas.get("version", "")).split(".")[:3])
    return f"NumPy {np.__version__} with {blas.get('name', 'a BLAS')} {version}, {len(os.sched_getaffinity(0))} cores"


def _blas(problem: Problem, arrays: Arrays, out: HostArray) -> Call:
    names: Any = arrays
    if problem.kernel != "linear":
        left, right = list(arrays.values())
        return functools.partial(np.matmul, left, right, out=out)

    def layer() -> None:
        np.matmul(names["X"], names["W"].T, out=out)
        np.add(out, names["b"], out=out)
        np.maximum(out, 0, out=out)

    return layer
