"""Records random configurations of one variant at some shapes, to be replayed as a device: a T4 file a shape.

    python benchmarks/record.py --out benchmarks/recordings

Each file holds `--configurations` unique configurations drawn uniformly, or the whole space where it is smaller. Every
one is compiled, verified and sampled in full: nothing is raced out, so that a replayed race meets real samples.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any

from documents.file import now, problem_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.devices.device import Device
from tilewright.tuner.devices.local import open_device
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.loop.outcome import Evaluation, Outcome
from tilewright.tuner.loop.tune import Budget, Hooks, Progress, Trial, tune
from tilewright.tuner.recorded.recordings import INVALIDITY, read_recording

SHAPES = ["2048x2048x2048", "16x4096x4096"]
NO_RACE = MeasurementPlan(single_margin=float("inf"), few_margin=float("inf"), race_margin=float("inf"))
DIGITS = 5  # events resolve half a microsecond; more digits only make the file larger

Row = dict[str, Any]


def t4_row(trial: Trial, recorded_at: str) -> Row:
    """One result as the T4 schema 1.0.0 has it; times in milliseconds, `runtimes` those of the ranking L2 state."""
    evaluation = trial.evaluation
    runtimes = evaluation.ranking.samples_ms if evaluation.ranking else ()
    measured = [("time", evaluation.time_ms, "ms")] if evaluation.time_ms is not None else []
    return {
        "timestamp": recorded_at,
        "configuration": dict(trial.configuration.items),
        "times": {
            "compilation": round(evaluation.compile_ms or 0.0, 1),
            "framework": 0,
            "search_algorithm": 0,
            "validation": 0,
            "runtimes": [significant(time_ms) for time_ms in runtimes],
        },
        "invalidity": INVALIDITY[evaluation.outcome],
        "correctness": int(evaluation.outcome is Outcome.MEASURED),
        "measurements": [
            {"name": name, "value": significant(value), "unit": unit}
            for name, value, unit in [*measured, *side_measurements(evaluation)]
        ],
        "objectives": ["time"],
    }


def side_measurements(evaluation: Evaluation) -> list[tuple[str, float, str]]:
    """The other measurements: the time in the other L2 state, and the compiler's resources."""
    side = evaluation.cold if evaluation.ranking_l2 == "warm" else evaluation.warm
    resources = evaluation.resources
    known = [
        (f"time_{side.l2}" if side else "", side.time_ms if side else None, "ms"),
        ("registers", resources.registers, ""),
        ("shared", resources.shared_bytes, "B"),
        ("spills", resources.spill_bytes, "B"),
        ("occupancy", resources.occupancy, ""),
    ]
    return [(name, value, unit) for name, value, unit in known if value is not None]


def significant(value: float) -> float:
    """The value to a few digits."""
    return float(f"{value:.{DIGITS}g}")


def record(
    device: Device, kernel: Kernel, problem: Problem, variant: str, *, count: int, seed: int, seconds: float
) -> list[Trial]:
    """The trials, in the order in which they ended; fewer than `count` where space or time end first."""
    trials: list[Trial] = []
    begun = time.monotonic()

    def is_over() -> bool:
        return len(trials) >= count or time.monotonic() - begun > seconds

    def on_trial(progress: Progress) -> None:
        trials.append(progress.trial)
        if len(trials) % 250 == 0:
            print(f"{problem}: {len(trials)} in {time.monotonic() - begun:.0f} s", flush=True)

    space = kernel.space(problem, device.model.limits, [variant])
    bench = device.bench(kernel, problem, seed)
    try:
        tune(
            bench,
            kernel,
            space,
            Budget(trials=min(count, len(space))),
            seed=seed,
            sampler="random",
            plan=NO_RACE,
            hooks=Hooks(on_trial, is_over),
        )
    finally:
        bench.close()
    return trials


def write_t4(path: Path, trials: list[Trial], about: Row) -> None:
    """Writes them; the file appears when it is whole, and is the same for the same trials (no time in its header)."""
    recorded_at = now()
    document = {
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds", **about},
        "results": [t4_row(trial, recorded_at) for trial in trials],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))
    partial.replace(path)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernel", default="gemm")
    parser.add_argument("--variant", default="register")
    parser.add_argument("--shape", action="append", help=f"m x n x k; may be repeated (default {' and '.join(SHAPES)})")
    parser.add_argument("--configurations", type=int, default=5000, help="a shape")
    parser.add_argument("--seconds", type=float, default=540.0, help="per shape; what was recorded by then is written")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/recordings"))
    return parser.parse_args()


def main() -> None:
    """Records every shape and reads it back."""
    arguments = parse()
    kernel = catalogue().get(arguments.kernel)
    device = open_device(arguments.device)
    about = {
        "kernel": arguments.kernel,
        "variant": arguments.variant,
        "device": device.model.name,
        "driver": device.environment.driver,
        "compiler": f"{device.environment.compiler} {device.environment.compiler_version}",
        "seed": arguments.seed,
    }
    for shape in arguments.shape or SHAPES:
        problem = problem_of(kernel, shape)
        begun = time.monotonic()
        trials = record(
            device,
            kernel,
            problem,
            arguments.variant,
            count=arguments.configurations,
            seed=arguments.seed,
            seconds=arguments.seconds,
        )
        slug = device.model.slug.replace(":", "-")
        path = arguments.out / f"{arguments.kernel}_{arguments.variant}_{shape}_{slug}.json.gz"
        source = kernel.source_hash(arguments.variant)
        write_t4(path, trials, about | {"problem": problem.as_json(), "source_hash": source})
        measured = sum(entry.outcome is Outcome.MEASURED for entry in read_recording(path).entries.values())
        wall_s = time.monotonic() - begun
        print(f"{path}: {len(trials)} recorded, {measured} measured, {wall_s:.0f} s, {path.stat().st_size} B")
    device.close()


if __name__ == "__main__":
    main()
