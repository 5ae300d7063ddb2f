"""What the check at the first use costs the call that is checked: time on the GPU and of the caller, in turns.

Each round loads a configuration anew inside a graph capture, in which nothing is checked, so that the eager call behind
it is the first that is. It is timed beside the same call without the check and the library's product of 16 rows. All of
a measurement is enqueued behind a kernel that waits, so that events do not time the host. A line a problem:

    python benchmarks/first_use.py --rounds 30 --out benchmarks/results/h200/first_use.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from documents.file import now, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime import Launcher, Runtime
from tilewright.tuner.runtime.choice import default_choice
from tilewright.tuner.runtime.first_use import first_use
from tilewright.tuner.runtime.launches.devices import place_of

ROWS = 16
SLEEP_CYCLES = 2_000_000  # about a millisecond
PROBLEMS = [(size, size, size, dtype) for dtype in ("float32", "bfloat16") for size in (512, 2048, 4096, 8192)]
PROBLEMS += [(64, 4096, 4096, "bfloat16"), (64, 4096, 4096, "float32")]
WITH, WITHOUT, LIBRARY = "with", "without", "rows"

Times = dict[str, list[tuple[float, float]]]
"""Microseconds on the GPU and of the caller by contestant, a pair a round."""


def main() -> None:
    """Measures, prints a table, and writes the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name()
    found = []
    print(f"{device}, medians of {arguments.rounds} rounds, µs\n\n{HEAD}")
    for m, n, k, dtype in PROBLEMS:
        row = {"m": m, "n": n, "k": k, "dtype": dtype, **summary(measured(m, n, k, dtype, arguments.rounds))}
        found.append(row)
        print(line(row), flush=True)
    if arguments.out:
        write(arguments.out, {"device": device, "made_at": now(), "rounds": arguments.rounds, "rows": found})


HEAD = (
    "| gemm | dtype | without | with | longer | 16 rows by the library | longer / rows | caller without | with |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(row: dict[str, Any]) -> str:
    """A line of the table."""
    shape = f"{row['m']} x {row['n']} x {row['k']} | {row['dtype']}"
    gpu = f"{row['without_us']:.1f} | {row['with_us']:.1f} | {row['longer_us']:.1f} | {row['rows_us']:.1f}"
    return f"| {shape} | {gpu} | {row['ratio']:.2f} | {row['caller_without_us']:.1f} | {row['caller_with_us']:.1f} |"


def summary(times: Times) -> dict[str, float]:
    """Medians; `longer_us` is that of the differences of a round, and `ratio` is over the rows' product."""
    gpu = {name: [pair[0] for pair in pairs] for name, pairs in times.items()}
    longer = statistics.median(x - y for x, y in zip(gpu[WITH], gpu[WITHOUT], strict=True))
    rows = statistics.median(gpu[LIBRARY])
    return {
        "without_us": statistics.median(gpu[WITHOUT]),
        "with_us": statistics.median(gpu[WITH]),
        "longer_us": longer,
        "rows_us": rows,
        "ratio": longer / rows,
        "caller_without_us": statistics.median(pair[1] for pair in times[WITHOUT]),
        "caller_with_us": statistics.median(pair[1] for pair in times[WITH]),
    }


def measured(m: int, n: int, k: int, dtype: str, rounds: int) -> Times:
    """The contestants in turns; each round is another first use."""
    problem = catalogue().get("gemm").problem({"m": m, "n": n, "k": k}, dtype)
    configuration = chosen(problem)
    kind = getattr(torch, dtype)
    a, b = torch.randn(m, k, device="cuda").to(kind), torch.randn(k, n, device="cuda").to(kind)
    c, rows = torch.empty(m, n, device="cuda", dtype=kind), torch.empty(ROWS, n, device="cuda", dtype=kind)
    few = a[:ROWS].contiguous()
    torch.backends.cuda.matmul.allow_tf32 = False
    unchecked = loaded(problem, configuration, (a, b, c), is_checked=False)
    times: Times = {WITH: [], WITHOUT: [], LIBRARY: []}
    for place in range(rounds + 2):  # the first two warm up
        first_use.forget()
        checked = loaded(problem, configuration, (a, b, c), is_checked=True)
        calls = {
            WITH: lambda checked=checked: checked(a, b, c),
            WITHOUT: lambda: unchecked(a, b, c),
            LIBRARY: lambda: torch.mm(few, b, out=rows),
        }
        names = list(calls)
        for name in names[place % 3 :] + names[: place % 3]:
            times[name].append(timed(calls[name]))
        checked(a, b, c)  # reads the verdict
    return {name: pairs[2:] for name, pairs in times.items()}


def chosen(problem: Problem) -> Configuration:
    """What is predicted here, else the kernel's default."""
    kernel, place = catalogue().get(problem.kernel), place_of("cuda:0")
    predicted = Runtime().predicted(kernel, problem, place)
    return (predicted or default_choice(kernel, problem, place)).configuration


def loaded(problem: Problem, configuration: Configuration, arrays: tuple[Any, ...], *, is_checked: bool) -> Launcher:
    """A launcher whose next call loads nothing, and is the first that can be checked."""
    runtime = Runtime(check_first_use=is_checked)
    runtime.pin({problem: configuration}, {problem: "predicted"})
    launch = runtime.best(problem.kernel, dtype=problem.dtype, **problem.stated_shape)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        launch(*arrays)
    torch.cuda.synchronize()
    return launch


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds on the GPU, and from call to return."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)  # noqa: SLF001 - PyTorch's own tests wait so
    begin.record()
    start = time.perf_counter_ns()
    call()
    caller_us = (time.perf_counter_ns() - start) / 1e3
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3, caller_us


if __name__ == "__main__":
    main()
