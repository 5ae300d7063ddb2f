"""Verified configurations per second of gemm `register`, beside Kernel Tuner on the same source, space and shape.

    python benchmarks/rate.py --out benchmarks/results/h200/rate.json

Both draw unique configurations uniformly and compile each of them anew: the caches are empty folders. Ours verifies
every one and takes 7 samples or more unless a configuration is raced out. Kernel Tuner (not a dependency: pip install
kernel_tuner cuda-bindings pycuda) times 7 launches and verifies nothing. It cannot ask for more than 48 KiB of dynamic
shared memory and knows no workspace, so it runs in the part of the space that needs neither; ours runs there too.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from documents.file import now, problem_of, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration, Constraint, SearchSpace
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.statistics import median
from tilewright.tuner.loop.tune import Budget, Hooks, Progress, tune
from tilewright.tuner.outcome import Outcome

SHARED_BYTES = 48 * 1024  # what a launch may have without asking
PEERS = {"NVCUDA": "kernel_tuner NVRTC", "PYCUDA": "kernel_tuner PyCUDA"}
SLOWER = 3  # nvcc takes some times longer than NVRTC
Row = dict[str, Any]


def common_space(kernel: Kernel, space: SearchSpace) -> SearchSpace:
    """The part of it that Kernel Tuner can launch."""
    (part,) = space.spaces
    variant = kernel.variant(part.variant)
    fits = Constraint(
        "shared memory needs no asking, and nothing else is needed",
        lambda c, p, _d: variant.launch(c, p).shared_bytes <= SHARED_BYTES and not variant.workspace_bytes(c, p),
    )
    return replace(space, spaces=(replace(part, constraints=(*part.constraints, fits)),))


def ours(
    device: Device,
    kernel: Kernel,
    problem: Problem,
    space: SearchSpace,
    count: int,
    seed: int,
    *,
    seconds: float | None = None,
) -> Row:
    """The rate of `count` trials, from the first proposal to the last result.

    With `seconds` that is the budget, and the search goes ahead as far as there are compilers.
    """
    trials = []
    wall_s = 0.0

    def on_trial(progress: Progress) -> None:
        nonlocal wall_s
        if len(trials) < count:  # one more is under way when the search is stopped
            trials.append(progress.trial)
            wall_s = progress.trial.started_s + progress.trial.wall_s

    begun = time.perf_counter()
    bench = device.bench(kernel, problem, seed)
    setup_s = time.perf_counter() - begun
    count = min(count, len(space))
    budget = Budget(trials=count) if seconds is None else Budget(seconds=seconds)
    # Stopped where the budget ends: no finals.
    tune(
        bench,
        kernel,
        space,
        budget,
        seed=seed,
        sampler="random",
        hooks=Hooks(on_trial, should_stop=lambda: len(trials) >= count or wall_s >= (seconds or float("inf"))),
    )
    bench.close()
    evaluations = [trial.evaluation for trial in trials]
    samples = [len(e.ranking.samples_ms) for e in evaluations if e.ranking is not None]
    return {
        "tuner": "tilewright",
        "compiler": device.environment.compiler,
        "space_size": len(space),
        "configurations": len(trials),
        "unique": len({trial.configuration for trial in trials}),
        "verified": sum(e.outcome is Outcome.MEASURED and e.bound_ratio is not None for e in evaluations),
        "outcomes": dict(Counter(str(e.outcome) for e in evaluations)),
        "samples": {str(n): count for n, count in sorted(Counter(samples).items())},
        "wall_s": round(wall_s, 3),
        "per_second": round(len(trials) / wall_s, 1),
        "compile_ms": round(median([e.compile_ms for e in evaluations if e.compile_ms is not None]), 1),
        "setup_s": round(setup_s, 2),
        "best_ms": min(e.time_ms for e in evaluations if e.time_ms is not None),
    }


def peer(kernel: Kernel, problem: Problem, space: SearchSpace, backend: str, count: int, seed: int) -> Row:
    """Kernel Tuner's rate, in this process; what it spends before the first and after the last is left out."""
    import kernel_tuner  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - not a dependency
    import numpy as np  # noqa: PLC0415

    (part,) = space.spaces
    names = [p.name for p in part.parameters]
    threads = {c.items: kernel.variant(c.variant).launch(c.values, problem).threads for c in space.feasible}
    tuned = {p.name: sorted({c.values[p.name] for c in space.feasible}) for p in part.parameters}
    first = space.feasible[0]
    # With definitions of ours it makes none of its own: each parameter's is a function of the configuration.
    macros: dict[str, Any] = dict(kernel.definitions(problem, first))
    macros |= {name: lambda p, name=name: str(p[name]) for name in names}

    def items(p: Any) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((name, int(p[name])) for name in names))

    def is_one(*values: int, **named: int) -> bool:  # the space's builder gives values, other callers names
        p = named or dict(zip([*tuned, "BLOCK_THREADS"], values, strict=True))
        return threads.get(items(p)) == p["BLOCK_THREADS"]

    def launch(p: Any) -> Any:
        return kernel.variant(part.variant).launch(Configuration(part.variant, items(p)).values, problem)

    rng = np.random.default_rng(seed)
    m, n, k = (problem.shape[axis] for axis in "mnk")
    matrices = [rng.standard_normal(size, dtype=np.float32) for size in ((m, k), (k, n), (m, n))]
    arguments = [np.float32(2), matrices[0], matrices[1], np.float32(0), matrices[2]]
    begun = time.perf_counter()
    print(f"{len(space)} configurations are handed over", file=sys.stderr, flush=True)
    results, _ = kernel_tuner.tune_kernel(
        kernel.entry,
        kernel.source(part.variant),
        lambda p: launch(p).grid,
        arguments,
        {**tuned, "BLOCK_THREADS": sorted(set(threads.values()))},
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        block_size_names=["BLOCK_THREADS"],
        restrictions=[is_one],
        smem_args={"size": lambda p: launch(p).shared_bytes},
        defines=macros,
        lang=backend,
        compiler_options=["-std=c++17"],
        strategy="random_sample",
        strategy_options={"max_fevals": count},
        iterations=7,
        quiet=True,
        seed=seed,
    )
    wall_s = time.perf_counter() - begun
    kinds = ("compile_time", "benchmark_time", "verification_time", "framework_time", "strategy_time")
    spent_s = sum(float(result.get(kind, 0.0)) for result in results for kind in kinds) / 1e3
    measured = [result for result in results if isinstance(result["time"], float)]
    return {
        "tuner": PEERS[backend],
        "version": kernel_tuner.__version__ if hasattr(kernel_tuner, "__version__") else "1.5",
        "space_size": len(space),
        "configurations": len(results),
        "measured": len(measured),
        "verified": 0,
        "wall_s": round(spent_s, 3),
        "whole_call_s": round(wall_s, 3),
        "per_second": round(len(results) / spent_s, 2),
        "compile_ms": round(median([float(r["compile_time"]) for r in results]), 1),
        "best_ms": min((float(r["time"]) for r in measured), default=None),
    }


def in_own_process(backend: str, count: int, limits: Path, arguments: argparse.Namespace) -> Row:
    """The peer's row, or the reason why it failed, from a process of its own with its own CUDA context."""
    command = [
        sys.executable,
        __file__,
        "--peer",
        backend,
        "--peer-configurations",
        str(count),
        "--limits",
        str(limits),
    ]
    command += ["--shape", arguments.shape, "--seed", str(arguments.seed), "--variant", arguments.variant]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=arguments.peer_seconds)
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or late.stdout or b"").decode(errors="replace").strip().splitlines() or ["nothing"]
        reason = f"{count} configurations had not ended after {late.timeout:g} s; its last line: {said[-1]}"
        return {"tuner": PEERS[backend], "reason": reason}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"tuner"')]
    if done.returncode or not lines:
        return {"tuner": PEERS[backend], "reason": (done.stderr.strip().splitlines() or ["no result"])[-1]}
    row: Row = json.loads(lines[-1])
    return row


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--variant", default="register")
    parser.add_argument("--shape", default="2048x2048x2048", help="m x n x k")
    parser.add_argument("--configurations", type=int, default=600, help="trials of Tilewright in its whole space")
    parser.add_argument(
        "--common", type=int, default=200, help="trials of Tilewright in the space that Kernel Tuner can launch"
    )
    parser.add_argument("--peer-configurations", type=int, default=12, help=f"by NVRTC; by nvcc 1 of {SLOWER}")
    parser.add_argument("--peer-seconds", type=float, default=90.0, help="stop Kernel Tuner after this long")
    parser.add_argument("--limits", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", choices=tuple(PEERS), help="run Kernel Tuner alone, and print its row")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def rows_of(arguments: argparse.Namespace, kernel: Kernel, problem: Problem, folder: Path) -> Iterator[Row]:
    """Every row as it is measured; each opening of the device has an empty cache."""
    for place, configurations in (("whole", arguments.configurations), ("common", arguments.common)):
        os.environ["TILEWRIGHT_CACHE_DIR"] = str(folder / place)
        device = open_device(arguments.device)
        space = kernel.space(problem, device.model.limits, [arguments.variant])
        if place == "common":
            space = common_space(kernel, space)
        facts = {"space": place, "device": device.model.name, "driver": device.environment.driver}
        yield ours(device, kernel, problem, space, configurations, arguments.seed) | facts | {"cubins": "compiled"}
        if place == "whole":
            again = ours(device, kernel, problem, space, configurations, arguments.seed)
            yield again | facts | {"cubins": "found in the cache: what device and processes allow"}
        (folder / "limits").write_bytes(pickle.dumps(device.model.limits))
        device.close()
        if arguments.without_peers:
            return
    for backend, share in (("NVCUDA", 1), ("PYCUDA", SLOWER)):
        count = max(1, arguments.peer_configurations // share)
        yield in_own_process(backend, count, folder / "limits", arguments) | {"space": "common"}


def run_peer(arguments: argparse.Namespace, kernel: Kernel, problem: Problem) -> Row:
    """Kernel Tuner's row in this process, on the space of the device whose limits lie in a file."""
    limits = pickle.loads(arguments.limits.read_bytes())  # noqa: S301 - written by `rows_of`
    space = common_space(kernel, kernel.space(problem, limits, [arguments.variant]))
    return peer(kernel, problem, space, arguments.peer, arguments.peer_configurations, arguments.seed)


def main() -> None:
    """Runs what the command line asks for, in empty caches; the file is written anew with every row."""
    arguments = parse()
    kernel = catalogue().get("gemm")
    problem = problem_of(kernel, arguments.shape)
    document: Row = {
        "written_at": now(),
        "command": "python benchmarks/rate.py " + " ".join(sys.argv[1:]),
        "cores": len(os.sched_getaffinity(0)),
        "problem": problem.as_json(),
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="tilewright-rate-") as folder:
        os.environ |= {"TILEWRIGHT_CACHE_DIR": folder, "CUDA_CACHE_PATH": folder, "XDG_CACHE_HOME": folder}
        if arguments.peer:
            print(json.dumps(run_peer(arguments, kernel, problem)))
            return
        for row in rows_of(arguments, kernel, problem, Path(folder)):
            document["rows"].append(row)
            print(json.dumps(row), flush=True)
            if arguments.out:
                write(arguments.out, document)


if __name__ == "__main__":
    main()
