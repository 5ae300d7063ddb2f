"""One layer at any number of rows on a GPU: a trace of sizes beside torch.mm, and what a size at launch costs a kernel.

    python benchmarks/families.py [--calls 2000] [--seed 1] [--skip-sizes] [--out FILE]

The trace: sizes are log-normal around 300 rows with a tail to 8192, and every size is met for the first time; no call
warms up. Times are those of the host, from the first call to the end of the last. The second table times
configurations with their rows compiled in and with their rows from the launch, in turns. TF32 is off.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from documents.file import now, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.family import Family
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.runtime.runtime import Runtime

N = K = 4096
LARGEST = 8192
SIZES = (16, 300, 1000, 4096)
SAMPLES = 9


def main() -> None:
    """Measures, prints tables, and writes the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-sizes", action="store_true", help="only the trace")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name()
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{device}, {arguments.calls} calls, seed {arguments.seed}")
    traces = [trace(dtype, arguments.calls, arguments.seed) for dtype in ("float32", "bfloat16")]
    ratios = [] if arguments.skip_sizes else at_launch_ratios(("float32", "bfloat16"))
    if arguments.out:
        document = {"device": device, "made_at": now(), "seed": arguments.seed, "traces": traces, "at_launch": ratios}
        write(arguments.out, document)


def sizes_of(count: int, seed: int) -> list[int]:
    """That many sizes, log-normal around 300."""
    generator = random.Random(seed)
    return [min(LARGEST, max(1, round(generator.lognormvariate(5.7, 1.0)))) for _ in range(count)]


def trace(dtype: str, count: int, seed: int) -> dict[str, Any]:
    """One trace through our launcher and through torch.mm, in turns of three; the medians of both."""
    sizes, kind = sizes_of(count, seed), getattr(torch, dtype)
    x, w = torch.randn(LARGEST, K, device="cuda").to(kind), torch.randn(K, N, device="cuda").to(kind)
    y = torch.empty(LARGEST, N, device="cuda", dtype=kind)
    torch.mm(x[:64], w, out=y[:64])  # the library is loaded
    begun = time.perf_counter()
    free_bytes = torch.cuda.mem_get_info()[0]
    launch = Runtime().best("gemm", n=N, k=K, dtype=dtype)
    launch.prepare()
    prepare_s = time.perf_counter() - begun
    calls: dict[str, Callable[[int], object]] = {
        "ours": lambda m: launch(x[:m], w, y[:m]),
        "library": lambda m: torch.mm(x[:m], w, out=y[:m]),
    }
    first_us: list[float] = []
    warm_us: list[float] = []
    new = set(sizes)
    totals: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for m in sizes:
                before = time.perf_counter_ns()
                call(m)
                if name == "ours":
                    (first_us if m in new else warm_us).append((time.perf_counter_ns() - before) / 1e3)
                    new.discard(m)
            torch.cuda.synchronize()
            totals[name].append(time.perf_counter() - start)
    taken_bytes = free_bytes - torch.cuda.mem_get_info()[0]
    row = {
        "dtype": dtype,
        "sizes": len(set(sizes)),
        "prepare_s": prepare_s,
        "first_trace_ratio": totals["library"][0] / totals["ours"][0],
        "trace_ratio": statistics.median(totals["library"]) / statistics.median(totals["ours"]),
        "memory_mb": taken_bytes / 1e6,
        "first_call_us": statistics.median(first_us),
        "first_call_most_us": max(first_us),
        "warm_call_us": statistics.median(warm_us),
        "ranges": len(launch.ranges("cuda:0")),
    }
    print({name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}, flush=True)
    return row


def at_launch_ratios(dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """A row a variant: its time with its rows compiled in over that with its rows from the launch."""
    device, kernel, found = open_device("cuda:0", "nvrtc"), catalogue().get("gemm"), []
    for dtype in dtypes:
        family = Family.of(kernel, {"m": (1, LARGEST), "n": N, "k": K}, dtype)
        for variant in kernel.usable_variants(family.largest, device.model.limits):
            ratios = [ratio for size in SIZES if (ratio := at_launch_ratio(device, kernel, family, variant.name, size))]
            if ratios:
                row = {
                    "variant": variant.name,
                    "dtype": dtype,
                    "ratios": ratios,
                    "mean": statistics.geometric_mean(ratios),
                }
                found.append(row)
                print(f"{variant.name} {dtype}: {row['mean']:.3f}, least {min(ratios):.3f}", flush=True)
    device.close()
    return found


def at_launch_ratio(device: Any, kernel: Any, family: Family, variant: str, size: int) -> float:
    """The ratio of the variant's first start at that size; 0 where it has none, or it failed."""
    at, exact = family.at(size), family.exact(size)
    starts = kernel.space(at, device.model.limits, only=[variant]).defaults()
    if not starts or (variant == "naive" and size > SIZES[1]):
        return 0.0
    benches = [device.bench(kernel, problem, 1) for problem in (exact, at)]
    try:
        programs = [bench.compile(starts[0]) for bench in benches]
        if any(bench.verify(program).wrong for bench, program in zip(benches, programs, strict=True)):
            raise ValueError(f"{variant} is wrong at {size}")
        times: list[list[float]] = [[], []]
        for _ in range(SAMPLES):
            for own, bench, program in zip(times, benches, programs, strict=True):
                own.append(statistics.median(bench.sample(program, "warm", 3)))
        return statistics.median(times[0]) / statistics.median(times[1])
    except TrialFailure as failure:
        print(f"{variant} at {size}: {failure.outcome} {failure.log[:200]}")
        return 0.0
    finally:
        for bench in benches:
            bench.close()


if __name__ == "__main__":
    main()
