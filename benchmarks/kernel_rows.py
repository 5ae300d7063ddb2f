"""One row of the table: an entry tuned, and its winner timed against the library in rounds of their own."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from suite import Entry, source_hash

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner import roofline, statistics
from tilewright.tuner.device import L2, Bench, Device, Executable
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.finals import Finalist
from tilewright.tuner.measure import checked_samples
from tilewright.tuner.tune import Budget, Progress, TuneResult, tune

SEED = 1
ROUNDS = 15  # the 95 % interval then cuts three rounds from each end
SAMPLES = 2  # a round
ACCURACY = {"float32": "fp32-fma", "float64": "fp64-fma"}
"""How the variants compute today: multiply-adds of CUDA cores."""

Row = dict[str, Any]


def row_head(entry: Entry, dtype: str, budget: Budget, device: Device) -> Row:
    """What a row says before anything was measured; a row with the same is not measured again on --resume."""
    problem = entry.problem(dtype)
    return {
        "name": entry.name,
        "kernel": entry.kernel,
        "dtype": dtype,
        "options": dict(problem.options),
        "accuracy": ACCURACY[dtype],
        "shape": dict(problem.shape),
        "origin": entry.origin,
        "budget": {"trials": budget.trials, "seconds": budget.seconds},
        "source_hash": source_hash(entry.declared),
        "environment_hash": device.environment.hash,
        "device_model": device.model.slug,
    }


def measure(device: Device, entry: Entry, dtype: str, budget: Budget) -> Row:
    """The row; where it could not be measured, one with a `reason` instead of times."""
    begun = time.monotonic()
    row = row_head(entry, dtype, budget, device)
    try:
        row |= _measured(device, entry.declared, entry.problem(dtype), budget)
    except (TunerError, TrialFailure) as error:
        row["reason"] = f"{type(error).__name__}: {error}"
    row |= {
        "wall_s": round(time.monotonic() - begun, 2),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return row


def _measured(device: Device, kernel: Kernel, problem: Problem, budget: Budget) -> Row:
    outcomes: Counter[str] = Counter()
    ended_s = 0.0

    def on_trial(progress: Progress) -> None:
        nonlocal ended_s
        outcomes[str(progress.trial.evaluation.outcome)] += 1
        ended_s = progress.trial.started_s + progress.trial.wall_s

    bench = device.bench(kernel, problem, SEED)
    try:
        space = kernel.space(problem, device.model.limits)
        result = tune(bench, kernel, space, budget, seed=SEED, on_trial=on_trial)
        found = {
            "trials": outcomes.total(),
            "outcomes": dict(outcomes),
            "space_size": len(space),
            "search_s": round(ended_s, 2),
            "stopped_by": result.stopped_by,
        }
        if result.best is None:
            return found | {"reason": "no configuration was measured and verified"}
        return found | _final_row(device, bench, kernel, problem, result, result.best)
    finally:
        bench.close()


def _final_row(
    device: Device, bench: Bench, kernel: Kernel, problem: Problem, result: TuneResult, best: Finalist
) -> Row:
    ours, library = bench.compile(best.configuration), bench.library()
    ranking: L2 = "cold" if kernel.ranking_l2 == "cold" else "warm"
    states: dict[str, Row] = {l2: paired(bench, ours, library, l2) for l2 in ("warm", "cold")}
    state = bench.state()
    times = states[ranking]
    return {
        "variant": best.configuration.variant,
        "configuration": best.configuration.as_json(),
        "l2": ranking,
        **times,
        **states,
        "library": bench.library_name(),
        "bound_ratio": bench.verify(ours).bound_ratio,
        # The CPU device times its library, and has no way to look at what it computed.
        "library_bound_ratio": bench.verify(library).bound_ratio if library and device.model.kind == "cuda" else None,
        "default_ms": result.default_ms,
        "ties": sum(finalist.ties for finalist in result.finalists),
        "resources": asdict(ours.resources),
        "gflops": roofline.gflops(kernel.flops(problem), times["time_ms"]),
        "gb_per_s": roofline.gb_per_s(kernel.bytes_moved(problem), times["time_ms"]),
        "bytes_moved": kernel.bytes_moved(problem),
        "percent_of_roof": roofline.percent_of_roof(kernel, problem, device.model, times["time_ms"]),
        "clock_mhz": state.clock_mhz,
        "temperature_c": state.temperature_c,
    }


def paired(bench: Bench, ours: Executable, library: Executable | None, l2: str) -> Row:
    """Times, intervals and speed-up of rounds in which the two take turns; the winner was chosen by other rounds.

    The speed-up is the median of the rounds' own ratios, library over ours: drift meets both and cancels.
    """
    runners = {"ours": ours} | ({} if library is None else {"library": library})
    rounds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(-1, ROUNDS):  # round -1 warms up and is not kept
        for name in sorted(runners, reverse=number % 2 == 0):
            samples = checked_samples(bench, runners[name], l2, SAMPLES)
            if number >= 0:
                rounds[name].append(statistics.median(samples))
    row = {"time_ms": statistics.median(rounds["ours"]), "ci_ms": _pair(statistics.median_interval(rounds["ours"]))}
    if library is None:
        return row | {"library_ms": None, "library_ci_ms": None, "speedup": None, "speedup_ci": None}
    speedup, interval = statistics.ratio_interval(rounds["library"], rounds["ours"])
    return row | {
        "library_ms": statistics.median(rounds["library"]),
        "library_ci_ms": _pair(statistics.median_interval(rounds["library"])),
        "speedup": speedup,
        "speedup_ci": _pair(interval),
    }


def _pair(interval: statistics.Interval) -> list[float]:
    return [interval.low, interval.high]
