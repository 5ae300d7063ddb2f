"""Verified configurations per second of gemm `register`: compiled anew, and with their cubins in the cache.

    python benchmarks/rate.py --out benchmarks/results/h200/rate.json

Unique configurations are drawn uniformly; the caches are empty folders at first. Every configuration is verified, and
takes 7 samples or more unless it is raced out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from documents.file import now, problem_of, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import SearchSpace
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.statistics import median
from tilewright.tuner.loop.tune import Budget, Hooks, Progress, tune
from tilewright.tuner.outcome import Outcome

Row = dict[str, Any]


def ours(
    device: Device,
    kernel: Kernel,
    problem: Problem,
    space: SearchSpace,
    count: int,
    seed: int,
) -> Row:
    """The rate of `count` trials, from the first proposal to the last result."""
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
    # Stopped where the budget ends: no finals.
    tune(
        bench,
        kernel,
        space,
        Budget(trials=count),
        seed=seed,
        sampler="random",
        hooks=Hooks(on_trial, should_stop=lambda: len(trials) >= count),
    )
    bench.close()
    evaluations = [trial.evaluation for trial in trials]
    samples = [len(e.ranking.samples_ms) for e in evaluations if e.ranking is not None]
    return {
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


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--variant", default="register")
    parser.add_argument("--shape", default="2048x2048x2048", help="m x n x k")
    parser.add_argument("--configurations", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def rows_of(arguments: argparse.Namespace, kernel: Kernel, problem: Problem) -> Iterator[Row]:
    """Both rows as they are measured: the second finds the cubins of the first."""
    device = open_device(arguments.device)
    space = kernel.space(problem, device.model.limits, [arguments.variant])
    facts = {"device": device.model.name, "driver": device.environment.driver}
    for cubins in ("compiled", "found in the cache: what device and processes allow"):
        row = ours(device, kernel, problem, space, arguments.configurations, arguments.seed)
        yield row | facts | {"cubins": cubins}
    device.close()


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
        for row in rows_of(arguments, kernel, problem):
            document["rows"].append(row)
            print(json.dumps(row), flush=True)
            if arguments.out:
                write(arguments.out, document)


if __name__ == "__main__":
    main()
