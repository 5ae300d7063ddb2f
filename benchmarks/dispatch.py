"""The caller's cost of a launch: the launcher, beside PyCUDA's prepared call of the same function and beside torch.mm.

    python benchmarks/dispatch.py --out benchmarks/results/h200/dispatch.json

A small float32 gemm, so that the GPU is never behind for long. A round is one batch of calls by each contestant, in
turns, each followed by an untimed synchronisation; the time is the host's, of the calls alone. Medians over all rounds;
`over_prepared_us` is the median of the differences within rounds. Needs PyCUDA; torch and CuPy where they are.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pycuda.driver as drv
import pycuda.gpuarray
from documents.file import in_turns, now, write

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.compile.compilation import Compilation, arch_of
from tilewright.tuner.compile.compiler import compile_now, default_compiler
from tilewright.tuner.devices.cuda import nvml
from tilewright.tuner.runtime import Launcher, Runtime, UntunedWarning
from tilewright.tuner.runtime.launches.devices import place_of

SIZE = 64
BATCH = 100  # far below the thousand launches that the driver queues
PREPARED = "PyCUDA prepared_async_call"
Call = Callable[[], Any]


def contestants(launch: Launcher) -> dict[str, Call]:
    """Every call by name, on arrays of its own."""
    generator = np.random.default_rng(1)
    a, b, c = (generator.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(3))
    A, B, C = (pycuda.gpuarray.to_gpu(x) for x in (a, b, c))
    calls: dict[str, Call] = {PREPARED: prepared(launch, A, B, C), "launch(GPUArray)": lambda: launch(A, B, C)}
    if importlib.util.find_spec("torch"):
        import torch  # noqa: PLC0415 - a contestant, not a dependency

        import tilewright.torch as tw  # noqa: PLC0415 - it imports torch

        tw.use(Runtime(check_first_use=False))
        D, E, F = (torch.from_numpy(x).cuda() for x in (a, b, c))
        calls["launch(torch.Tensor)"] = lambda: launch(D, E, F)
        calls["torch.mm(out=)"] = lambda: torch.mm(D, E, out=F)
        calls["torch.mm"] = lambda: torch.mm(D, E)
        calls["tw.gemm_"] = lambda: tw.gemm_(F, D, E)
        calls["tw.gemm"] = lambda: tw.gemm(D, E)
        calls["torch.ops.tilewright.gemm"] = lambda: torch.ops.tilewright.gemm(D, E)
    if importlib.util.find_spec("cupy"):
        import cupy  # noqa: PLC0415

        G, H, K = (cupy.asarray(x) for x in (a, b, c))
        calls["launch(cupy.ndarray)"] = lambda: launch(G, H, K)
        calls["cupy.matmul(out=)"] = lambda: cupy.matmul(G, H, out=K)
    return calls


def prepared(launch: Launcher, *arrays: Any) -> Call:
    """The same configuration through PyCUDA, with everything looked up before."""
    kernel, problem, configuration = launch.kernel, launch.problem, launch.choice("cuda:0").configuration
    limits = place_of("cuda:0").limits
    work = Compilation.of(kernel, problem, configuration, arch_of(limits.compute_capability), default_compiler())
    function = drv.module_from_buffer(compile_now(work).cubin).get_function(kernel.entry)
    function.prepare("fPPfP")
    launch_of = kernel.variant(configuration.variant).launch(configuration.values, problem)
    grid, block, shared_bytes = launch_of.grid, launch_of.block, launch_of.shared_bytes
    a, b, c = (array.gpudata for array in arrays)
    return lambda: function.prepared_async_call(grid, block, None, 1.0, a, b, 0.0, c, shared_size=shared_bytes)


def batch_us(call: Call) -> float:
    """Microseconds of one call, of a batch that is synchronised untimed."""
    start = time.perf_counter_ns()
    for _ in range(BATCH):
        call()
    end = time.perf_counter_ns()
    drv.Context.synchronize()
    return (end - start) / BATCH / 1e3


def rows(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Median, quartiles, and the median difference to the prepared call."""
    table_rows = []
    for name, own in times.items():
        low, middle, high = statistics.quantiles(own, n=4)
        over = statistics.median(x - y for x, y in zip(own, times[PREPARED], strict=True))
        table_rows.append({"call": name, "median_us": middle, "quartiles_us": [low, high], "over_prepared_us": over})
    return table_rows


def main() -> None:
    """Measures, writes the JSON and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    drv.init()
    context = drv.Device(0).retain_primary_context()
    context.push()
    warnings.simplefilter("ignore", UntunedWarning)
    launch = Runtime(check_first_use=False).best("gemm", m=SIZE, n=SIZE, k=SIZE)
    calls = rows(in_turns(contestants(launch), given.rounds, batch_us, warm_up=3))
    document = {
        "command": "python benchmarks/dispatch.py",
        "date": now(),
        "device": drv.Device(0).name(),
        "driver": nvml.driver_version(),
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "problem": str(catalogue().get("gemm").problem({"m": SIZE, "n": SIZE, "k": SIZE})),
        "rounds": given.rounds,
        "calls_a_round": BATCH,
        "rows": calls,
    }
    write(given.out, document)
    for row in calls:
        print(f"{row['call']:28} {row['median_us']:7.2f} us  {row['over_prepared_us']:+6.2f}")
    context.pop()
    context.detach()


if __name__ == "__main__":
    main()
