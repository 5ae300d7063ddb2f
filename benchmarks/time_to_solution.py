"""Wall time until a search is within 5 % of the best of a long one: cold, and with a prior made at another shape.

    python benchmarks/time_to_solution.py --out benchmarks/results/h200/time_to_solution.json

First a long search of `--record` trials settles what there is to find (skipped with `--best-ms`), then a short one at
`--prior-shape` makes the prior. Every run that counts has a new process on the device, an empty cubin cache and its
own seed; its time begins before the problem is set up there (inputs, float64 reference), which is told apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from documents.file import now, problem_of, write

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.statistics import median
from tilewright.tuner.loop.tune import Budget, Hooks, Knowledge, Progress, Trial, tune
from tilewright.tuner.search import Prior

WITHIN = 1.05
Row = dict[str, Any]


class Search:
    """One search in an empty cache, without finals; its trials, and what set-up and search took."""

    def __init__(
        self,
        device_name: str,
        kernel: Kernel,
        problem: Problem,
        budget: Budget,
        seed: int,
        priors: Sequence[Prior] = (),
    ) -> None:
        self.trials: list[Trial] = []
        with tempfile.TemporaryDirectory(prefix="tilewright-solution-") as folder:
            os.environ |= {"TILEWRIGHT_CACHE_DIR": folder, "CUDA_CACHE_PATH": folder}
            device = open_device(device_name)
            try:
                begun = time.perf_counter()
                bench = device.bench(kernel, problem, seed)
                self.setup_s = time.perf_counter() - begun
                space = kernel.space(problem, device.model.limits)
                self.space_size = len(space)
                self.facts = {"device": device.model.name, "driver": device.environment.driver}
                stop_at = budget.target_ms or 0.0

                def is_over() -> bool:
                    best = self.best_ms
                    done = budget.trials is not None and len(self.trials) >= budget.trials
                    late = budget.seconds is not None and time.perf_counter() - begun > budget.seconds
                    return done or late or (best is not None and best <= stop_at)

                tune(
                    bench,
                    kernel,
                    space,
                    budget,
                    seed=seed,
                    knowledge=Knowledge(priors=priors),
                    hooks=Hooks(self._record, is_over),
                )
                self.wall_s = time.perf_counter() - begun
                bench.close()
            finally:
                device.close()

    @property
    def best_ms(self) -> float | None:
        """The fastest trial's time."""
        return min((t.evaluation.time_ms for t in self.trials if t.evaluation.time_ms is not None), default=None)

    def row(self, kind: str, seed: int, target_ms: float) -> Row:
        """The result as a row."""
        return {
            "kind": kind,
            "seed": seed,
            "solved": self.best_ms is not None and self.best_ms <= target_ms,
            "wall_s": round(self.wall_s, 2),
            "setup_s": round(self.setup_s, 2),
            "trials": len(self.trials),
            "best_ms": self.best_ms,
        }

    def _record(self, progress: Progress) -> None:
        self.trials.append(progress.trial)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--shape", default="4096x4096x4096")
    parser.add_argument("--prior-shape", default="2048x2048x2048")
    parser.add_argument("--prior-trials", type=int, default=200)
    parser.add_argument("--record", type=int, default=2000, help="trials of the long search")
    parser.add_argument("--record-seconds", type=float, default=240.0)
    parser.add_argument("--best-ms", type=float, help="the best time of an earlier long search, which is then skipped")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="the longest that a run may take")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """The long search, the prior, and the runs of both kinds in turn."""
    arguments = parse()
    kernel = catalogue().get(arguments.kernel)
    problem, elsewhere = problem_of(kernel, arguments.shape), problem_of(kernel, arguments.prior_shape)
    document: Row = {
        "written_at": now(),
        "command": "python benchmarks/time_to_solution.py " + " ".join(sys.argv[1:]),
        "cores": len(os.sched_getaffinity(0)),
        "problem": problem.as_json(),
        "within": WITHIN,
    }
    best_ms = arguments.best_ms
    if best_ms is None:
        budget = Budget(trials=arguments.record, seconds=arguments.record_seconds)
        long = Search(arguments.device, kernel, problem, budget, seed=arguments.seed)
        best_ms = long.best_ms
        document["record"] = long.row("record", arguments.seed, 0.0) | {"space_size": long.space_size}
        print(document["record"], flush=True)
    target_ms = WITHIN * best_ms
    short = Search(arguments.device, kernel, elsewhere, Budget(trials=arguments.prior_trials), seed=arguments.seed + 1)
    evaluated = [(trial.configuration, trial.evaluation) for trial in short.trials]
    prior = Prior.of(str(elsewhere), evaluated)
    document |= {"best_ms": best_ms, **short.facts, "prior": {"shape": arguments.prior_shape, "trials": len(evaluated)}}
    rows: list[Row] = []
    for run in range(arguments.runs):
        for kind, priors in (("cold", ()), ("prior", (prior,))):
            seed = arguments.seed + 10 + run
            budget = Budget(seconds=arguments.seconds, target_ms=target_ms)
            rows.append(
                Search(arguments.device, kernel, problem, budget, seed=seed, priors=priors).row(kind, seed, target_ms)
            )
            print(rows[-1], flush=True)
    document["rows"] = rows
    for kind in ("cold", "prior"):
        times = [row["wall_s"] for row in rows if row["kind"] == kind]
        document[f"{kind}_median_s"] = median(times)
        document[f"{kind}_solved"] = sum(row["solved"] for row in rows if row["kind"] == kind)
    print({key: value for key, value in document.items() if key != "rows"}, flush=True)
    if arguments.out:
        write(arguments.out, document)


if __name__ == "__main__":
    main()
