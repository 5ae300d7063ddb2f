"""The same job with ten seeds and no prior: the ten winners in one interleaved final, and how far they lie apart.

python benchmarks/seeds.py --out benchmarks/results/h200/seeds.json
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from documents.file import now, problem_of, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.finals import Finalist, finals
from tilewright.tuner.loop.measure import DEFAULT_PLAN
from tilewright.tuner.loop.tune import Budget, Hooks, Progress, tune

Row = dict[str, Any]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--shape", default="2048x2048x2048")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each search")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def compared(finalist: Finalist, best: Finalist) -> Row:
    """Its time over the best's, round by round."""
    ratio, interval = statistics.ratio_interval(finalist.samples_ms, best.samples_ms)
    return {
        "configuration": finalist.configuration.as_json(),
        "time_ms": finalist.time_ms,
        "ratio": ratio,
        "ratio_ci": [interval.low, interval.high],
    }


def main() -> None:
    """Ten searches on one bench, so that only the seed differs, then the final of their winners."""
    arguments = parse()
    kernel = catalogue().get(arguments.kernel)
    problem = problem_of(kernel, arguments.shape)
    device = open_device(arguments.device)
    bench = device.bench(kernel, problem, arguments.first_seed)
    space = kernel.space(problem, device.model.limits)
    winners: dict[Configuration, list[int]] = {}
    searches: list[Row] = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        trials = 0

        def count(progress: Progress) -> None:
            nonlocal trials
            trials = progress.done

        budget = Budget(trials=arguments.trials, seconds=arguments.seconds)
        result = tune(bench, kernel, space, budget, seed=seed, hooks=Hooks(count))
        if result.best is None:
            sys.exit(f"seed {seed}: nothing was measured and verified")
        winners.setdefault(result.best.configuration, []).append(seed)
        searches.append({"seed": seed, "trials": trials, "time_ms": result.best.time_ms})
        print(searches[-1], result.best.configuration, flush=True)
    plan = replace(DEFAULT_PLAN, final_rounds=21)
    standing = finals(bench, list(winners), kernel.ranking_l2, plan)
    assert standing is not None  # noqa: S101 - nobody stopped it
    best, *_ = standing.finalists
    rows = [compared(f, best) | {"seeds": winners[f.configuration]} for f in standing.finalists]
    document = {
        "written_at": now(),
        "command": "python benchmarks/seeds.py " + " ".join(sys.argv[1:]),
        "device": device.model.name,
        "driver": device.environment.driver,
        "cores": len(os.sched_getaffinity(0)),
        "problem": problem.as_json(),
        "spread": max(row["ratio"] for row in rows) - 1,
        "steadiness": asdict(standing.steadiness) if standing.steadiness else None,
        "searches": searches,
        "rows": rows,
    }
    bench.close()
    device.close()
    print(
        f"{len(rows)} different winners of {arguments.seeds}, the slowest {document['spread']:.2%} behind the fastest"
    )
    if arguments.out:
        write(arguments.out, document)


if __name__ == "__main__":
    main()
