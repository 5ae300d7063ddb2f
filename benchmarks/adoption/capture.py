"""What a capture costs a loop of launches of about 20 us: the same loop with and without it, in turns.

    python benchmarks/adoption/capture.py --out benchmarks/results/h200/capture.json

A round is one loop without and one with a capture that begins anew, for each way to launch; in `waits` the host waits
for every launch. Times are the host's, from the first launch to the end of the last; medians over the rounds, of which
each has an overhead of its own. Needs PyCUDA, CuPy and nvcc.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pycuda.autoprimaryctx
import pycuda.compiler
import pycuda.driver as drv
import pycuda.gpuarray

from tilewright.tuner.capture.program import with_cupy, with_pycuda
from tilewright.tuner.capture.program.recorder import Contents, Recorder
from tilewright.tuner.devices.cuda import nvml

KERNEL_US = 20.0
SOURCE = """
extern "C" __global__ void steps(float *y, const float *x, float a, int n, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  for (int k = 0; k < count; ++k) value = value * a + 1;
  y[i] = value;
}
"""
SIZE, BLOCK = 1 << 16, 256
GRID = SIZE // BLOCK
METHODS = ("__call__", "prepared_call", "prepared_timed_call", "prepared_async_call")
Loop = Callable[[], None]


class PyCudaWays:
    """PyCUDA's ways to launch, with its own methods or with the watched ones."""

    def __init__(self, folder: Path) -> None:
        self._own = {name: getattr(drv.Function, name) for name in METHODS}
        self.recorder = recorder(with_pycuda.PyCuda(drv), folder)
        watcher = with_pycuda.watch(drv, self.recorder)
        watcher.watch_compiler(pycuda.compiler)
        watcher.watch_arrays(pycuda.gpuarray)
        self._watched = {name: getattr(drv.Function, name) for name in METHODS}
        module = pycuda.compiler.SourceModule(SOURCE, no_extern_c=True)
        self._called = module.get_function("steps")
        self._prepared = module.get_function("steps").prepare("PPfii")
        self._x = pycuda.gpuarray.to_gpu(np.ones(SIZE, np.float32))
        self._y = pycuda.gpuarray.to_gpu(np.ones(SIZE, np.float32))

    def switch(self, *, watched: bool) -> None:
        """From now on, with or without the capture."""
        for name, method in (self._watched if watched else self._own).items():
            setattr(drv.Function, name, method)

    def ways(self, count: int) -> dict[str, tuple[Loop, Loop]]:
        """By name: a launch, and what waits for it."""
        x, y, a, n, steps = self._x, self._y, np.float32(0.5), np.int32(SIZE), np.int32(count)
        called, prepared, grid, block = self._called, self._prepared, (GRID, 1), (BLOCK, 1, 1)
        wait = drv.Context.synchronize
        return {
            "PyCUDA, called": (lambda: called(y, x, a, n, steps, grid=grid, block=block), wait),
            "PyCUDA, prepared": (
                lambda: prepared.prepared_call(grid, block, y.gpudata, x.gpudata, 0.5, SIZE, count),
                wait,
            ),
        }


class CuPyWays:
    """CuPy's, by its own classes or by the watched ones."""

    def __init__(self, folder: Path) -> None:
        own = cupy.RawKernel, cupy.RawModule
        self.recorder = recorder(with_cupy.CuPy(cupy), folder)
        with_cupy.watch(cupy, self.recorder)
        self._kernels = {
            watched: (kernel(SOURCE, "steps"), module(code=SOURCE).get_function("steps"))
            for watched, (kernel, module) in ((False, own), (True, (cupy.RawKernel, cupy.RawModule)))
        }
        self._x, self._y = cupy.ones(SIZE, cupy.float32), cupy.ones(SIZE, cupy.float32)
        self._is_watched = False

    def switch(self, *, watched: bool) -> None:
        """From now on, with or without the capture."""
        self._is_watched = watched

    def ways(self, count: int) -> dict[str, tuple[Loop, Loop]]:
        """By name: a launch, and what waits for it."""
        raw, of_module = self._kernels[self._is_watched]
        arguments = self._y, self._x, np.float32(0.5), np.int32(SIZE), np.int32(count)
        grid, block, wait = (GRID,), (BLOCK,), cupy.cuda.runtime.deviceSynchronize
        return {
            "CuPy, RawKernel": (lambda: raw(grid, block, arguments), wait),
            "CuPy, RawModule": (lambda: of_module(grid, block, arguments), wait),
        }


def recorder(library: Any, folder: Path) -> Recorder:
    """One that keeps no contents."""
    return Recorder(library, Contents(folder, None, lambda: None))


def loop_s(launch: Loop, wait: Loop, launches: int, *, waits: bool) -> float:
    """Seconds from the first launch to the end of the last."""
    wait()
    begun_s = time.perf_counter()
    if waits:
        for _ in range(launches):
            launch()
            wait()
    else:
        for _ in range(launches):
            launch()
        wait()
    return time.perf_counter() - begun_s


def steps_for(way: Callable[[int], tuple[Loop, Loop]]) -> int:
    """How many steps a launch makes in KERNEL_US; measured by launches that are longer than the host takes for one."""
    few, many, times_s = 15_000, 45_000, []
    for count in (few, many):
        loop_s(*way(count), 50, waits=False)
        times_s.append(loop_s(*way(count), 300, waits=False) / 300)
    per_step_us = (times_s[1] - times_s[0]) / (many - few) * 1e6
    return max(1, few + round((KERNEL_US - times_s[0] * 1e6) / per_step_us))


def measured(libraries: list[Any], launches: int, rounds: int) -> dict[tuple[str, bool], list[tuple[float, float]]]:
    """Microseconds of a launch without and with a capture, by way and whether the host waits; a pair a round."""
    libraries[0].switch(watched=False)
    count = steps_for(lambda steps: libraries[0].ways(steps)["PyCUDA, called"])
    times: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for place in range(rounds + 1):  # the first warms up
        for library in libraries:
            for waits in (False, True):
                for name in library.ways(count):
                    pair = {}
                    for watched in (False, True) if place % 2 else (True, False):
                        library.switch(watched=watched)
                        for function in library.recorder.functions.values():
                            function.clear()  # the capture begins anew
                        seconds = loop_s(*library.ways(count)[name], launches, waits=waits)
                        pair[watched] = seconds / launches * 1e6
                    if place:
                        times.setdefault((name, waits), []).append((pair[False], pair[True]))
    return times


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        libraries = [PyCudaWays(Path(folder)), CuPyWays(Path(folder))]
        times = measured(libraries, given.launches, given.rounds)
    rows = [
        {
            "way": name,
            "waits": waits,
            "plain_us": round(statistics.median(plain for plain, _ in pairs), 3),
            "captured_us": round(statistics.median(watched for _, watched in pairs), 3),
            "overhead": round(statistics.median(watched / plain - 1 for plain, watched in pairs), 5),
            "overheads": [round(watched / plain - 1, 5) for plain, watched in pairs],
        }
        for (name, waits), pairs in times.items()
    ]
    for row in rows:
        print(
            row["way"], "waits" if row["waits"] else "", row["plain_us"], row["captured_us"], f"{row['overhead']:+.2%}"
        )
    document = {
        "command": f"python benchmarks/adoption/capture.py --launches {given.launches} --rounds {given.rounds}",
        "device": drv.Device(0).name(),
        "driver": nvml.driver_version(),
        "python": platform.python_version(),
        "cupy": cupy.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "launches": given.launches,
        "rounds": given.rounds,
        "rows": rows,
    }
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
