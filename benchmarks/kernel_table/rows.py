"""One row of the table: an entry tuned, and its winner timed against the library in rounds of their own."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from documents.file import in_turns
from kernel_table.suite import Entry, source_hash

from tilewright.kernels.space import Configuration
from tilewright.tuner import roofline
from tilewright.tuner.devices.device import Bench, Device
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import checked_samples
from tilewright.tuner.loop.tune import Budget, Hooks, Progress, Trial, TuneResult, tune
from tilewright.tuner.loop.verify import verify_configuration
from tilewright.tuner.outcome import Executable

SEED = 1
ROUNDS = 15  # the 95 % interval then cuts three rounds from each end
SAMPLES = 2  # a round
HEATED_ROUNDS = 6  # the least with a 95 % interval
HEATED_MS = 1000.0
"""A round of either side where a row is timed at sustained clocks: the card has long settled on them after a second."""

NEAR, HEATED_CANDIDATES, HEATED_FINALISTS, HEATED_CHOICES = 1.12, 16, 4, 3
"""Whom a row at sustained clocks chooses from: so many of the fastest trials up to so far behind the best, and those
that are left of them after the first round. What needs less power can win: the clock falls as far as power demands."""

Row = dict[str, Any]


def row_head(entry: Entry, budget: Budget, device: Device) -> Row:
    """The part of a row that is known before measuring; --resume skips rows whose head is unchanged."""
    problem = entry.problem
    return {
        "name": entry.row,
        "kernel": entry.kernel,
        "dtype": entry.dtype,
        "options": dict(problem.options),
        "accuracy": entry.accuracy,
        "shape": problem.stated_shape,
        "origin": entry.origin,
        "budget": {"trials": budget.trials, "seconds": budget.seconds},
        "source_hash": source_hash(entry.declared),
        "environment_hash": device.environment.hash,
        "device_model": device.model.slug,
    }


def measure(device: Device, entry: Entry, budget: Budget) -> Row:
    """The row; where it could not be measured, one with a `reason` instead of times."""
    begun = time.monotonic()
    row = row_head(entry, budget, device)
    try:
        row |= _measured(device, entry, budget)
    except (TunerError, TrialFailure) as error:
        row["reason"] = f"{type(error).__name__}: {error}"
    row |= {
        "wall_s": round(time.monotonic() - begun, 2),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return row


def _measured(device: Device, entry: Entry, budget: Budget) -> Row:
    kernel, problem = entry.declared, entry.problem
    trials: list[Trial] = []

    def on_trial(progress: Progress) -> None:
        trials.append(progress.trial)

    bench = device.bench(kernel, problem, SEED)
    try:
        space = kernel.space(problem, device.model.limits)
        result = tune(bench, kernel, space, budget, seed=SEED, hooks=Hooks(on_trial))
        row = {
            "trials": len(trials),
            "outcomes": dict(Counter(str(trial.evaluation.outcome) for trial in trials)),
            "space_size": len(space),
            "search_s": round(trials[-1].started_s + trials[-1].wall_s, 2) if trials else 0.0,
            "stopped_by": result.stopped_by,
        }
        if result.best is None:
            return row | {"reason": "no configuration was measured and verified"}
        chosen: Configuration | None = result.best.configuration
        if entry.sustained:
            out = {fallen.configuration for fallen in result.dropped}
            chosen = heated_choice(bench, [trial for trial in trials if trial.configuration not in out])
        if chosen is None:
            return row | {"reason": "no configuration was right with every kind of inputs"}
        return row | _final_row(device, bench, entry, result, chosen)
    finally:
        bench.close()


def _final_row(device: Device, bench: Bench, entry: Entry, result: TuneResult, chosen: Configuration) -> Row:
    kernel, problem = entry.declared, entry.problem
    ours, library = bench.compile(chosen), bench.library()
    ranking = kernel.l2_of(problem)
    states: dict[str, Row] = {l2: paired(bench, ours, library, l2) for l2 in ("warm", "cold")}
    if entry.sustained:
        states["sustained"] = sustained(bench, ours, library)
    state = bench.state()
    flops, bytes_moved = kernel.flops(problem), kernel.bytes_moved(problem)
    times = states.get("sustained") or states[ranking]
    return {
        "variant": chosen.variant,
        "variant_source_hash": kernel.source_hash(chosen.variant),
        "configuration": chosen.as_json(),
        "l2": ranking,
        **times,
        **states,
        "library": bench.library_name(),
        **_errors(bench, ours, library),
        "default_ms": result.default_ms,
        **({} if ours.resources.pack_ms is None else {"pack_ms": ours.resources.pack_ms}),
        "ties": sum(finalist.ties for finalist in result.finalists),
        "resources": {name: value for name, value in asdict(ours.resources).items() if name != "pack_ms"},
        "gflops": None if flops is None else roofline.gflops(flops, times["time_ms"]),
        "gb_per_s": None if bytes_moved is None else roofline.gb_per_s(bytes_moved, times["time_ms"]),
        "bytes_moved": bytes_moved,
        "percent_of_roof": roofline.percent_of_roof(kernel, problem, device.model, times["time_ms"]),
        "clock_mhz": state.clock_mhz,
        "temperature_c": state.temperature_c,
    }


def _errors(bench: Bench, ours: Executable, library: Executable | None) -> Row:
    """Worst errors over their bounds: of all kinds of inputs, and of each; None of a library that shows no result."""
    row: Row = {}
    for prefix, executable in (("", ours), ("library_", library)):
        verifications = None if executable is None else bench.verify_each_kind(executable)
        known = [v for v in verifications or () if v.bound_ratio is not None]  # a check of the kernel's own has none
        ratios = {v.inputs: v.bound_ratio for v in known if math.isfinite(v.bound_ratio)}
        row |= {f"{prefix}bound_ratio": max(ratios.values(), default=None), f"{prefix}bound_ratios": ratios}
    return row


def sustained(bench: Bench, ours: Executable, library: Executable | None) -> Row:
    """As `paired`, with rounds of HEATED_MS or more for each side, each counted as a whole: nothing has cooled down."""
    return _taking_turns(HEATED_ROUNDS, lambda one: _heated_ms(bench, one), ours, library)


def heated_choice(bench: Bench, trials: Sequence[Trial]) -> Configuration | None:
    """The fastest at sustained clocks of those trials that were nearly the fastest in short rounds.

    It is right with every kind of inputs, as what wins the finals is; None where none is.
    """
    times_ms = {t.configuration: t.evaluation.time_ms for t in trials if t.evaluation.time_ms is not None}
    near = [c for c in sorted(times_ms, key=times_ms.__getitem__) if times_ms[c] <= NEAR * min(times_ms.values())]
    heated_ms: dict[Configuration, list[float]] = {c: [] for c in near[:HEATED_CANDIDATES]}
    for number in range(HEATED_CHOICES):
        for configuration in sorted(heated_ms, key=lambda c: statistics.median(heated_ms[c] or [0.0])):
            heated_ms[configuration].append(_heated_ms(bench, bench.compile(configuration)))
        ranked = sorted(heated_ms, key=lambda c: statistics.median(heated_ms[c]))
        heated_ms = {c: heated_ms[c] for c in ranked[: HEATED_FINALISTS if number == 0 else None]}
    return next((c for c in ranked if _is_right(bench, c)), None)


def _is_right(bench: Bench, configuration: Configuration) -> bool:
    return verify_configuration(bench, bench.compile(configuration)).is_right


def _heated_ms(bench: Bench, executable: Executable) -> float:
    one_ms = statistics.median(checked_samples(bench, executable, "warm", SAMPLES))
    samples = checked_samples(bench, executable, "warm", math.ceil(HEATED_MS / one_ms))
    return sum(samples) / len(samples)


def paired(bench: Bench, ours: Executable, library: Executable | None, l2: str) -> Row:
    """Times, intervals and speed-up of rounds in which the two take turns; the winner was chosen by other rounds.

    The speed-up is the median of the rounds' own ratios, library over ours: drift meets both and cancels.
    """
    return _taking_turns(ROUNDS, lambda one: statistics.median(checked_samples(bench, one, l2, SAMPLES)), ours, library)


def _taking_turns(
    count: int, round_ms: Callable[[Executable], float], ours: Executable, library: Executable | None
) -> Row:
    rounds = in_turns({"ours": ours} | ({} if library is None else {"library": library}), count, round_ms)
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
