"""Why a study's winner is the best: three sentences, its finalists, and what one step of each parameter costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.small import Dot, DotPlot
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.service.operations.views.winner import Step, Winner
from tilewright.tuner.roofline import peak_gflops

NEAR_A_LIMIT = 0.6
"""The share of a data sheet's rate from which the rate is named as the limit."""

FEW_WARPS = 0.25
"""Theoretical occupancy below which a multiprocessor has few warps to hide latency with."""


@dataclass(frozen=True)
class Why:
    """The sentences; the finalists as rows with a dot of the winner's time over theirs; the steps by parameter."""

    sentences: Sequence[str]
    finalists: Sequence[Mapping[str, Any]]
    plot: DotPlot
    steps: Sequence[tuple[str, int, Sequence[Step], str]]

    @classmethod
    def of(cls, result: ResultAnswer, around: Winner, details: Mapping[str, Any]) -> Why:
        """The explanation of a settled winner from what stands around it; `details`: those of its device model."""
        kernel, values = result.problem.kernel, around.trial.configuration
        # Shorter is faster: the winner's time over another's is that other one's speed, level is the winner's.
        ratios = [_speeds(one, result.time_ms) for one in around.finalists]
        plot = DotPlot.of([interval for _, interval in ratios])
        rows = [_finalist(kernel, one, plot.dot(*speed)) for one, speed in zip(around.finalists, ratios, strict=True)]
        by_name: dict[str, list[Step]] = {}
        for step in around.steps:
            by_name.setdefault(step.parameter, []).append(step)
        return cls(
            [_won(result), _margin(result, around), _limit(result, around, details)],
            rows,
            plot,
            [(name, values[name], steps, _effect(values[name], steps, around)) for name, steps in by_name.items()],
        )


def _speeds(finalist: Mapping[str, Any], best_ms: float) -> tuple[float, tuple[float, float]]:
    low, high = finalist["ci_ms"]
    return best_ms / finalist["time_ms"], (best_ms / high, best_ms / low)


def _finalist(kernel: str, finalist: Mapping[str, Any], dot: Dot) -> dict[str, Any]:
    values = {name: value for name, value in finalist["configuration"].items() if name != "variant"}
    variant = finalist["configuration"]["variant"]
    return {
        "variant": variant,
        "configuration": formatting.configuration(kernel, variant, values),
        "time_ms": finalist["time_ms"],
        "ci_ms": finalist["ci_ms"],
        "ties": finalist.get("ties", False),
        "dot": dot,
    }


def _won(result: ResultAnswer) -> str:
    """A sentence on the winner, and how it stands beside the default and the library."""
    beside = []
    if result.gain_over_default is not None:
        beside.append(f"{formatting.ratio(result.gain_over_default)} as fast as the default")
    if result.library is not None:
        beside.append(f"{formatting.ratio(result.library.speedup)} as fast as {result.library.name}")
    tail = f": {' and '.join(beside)}" if beside else ""
    return f"{result.variant} won with {formatting.kernel_time(result.time_ms)}{tail}."


def _margin(result: ResultAnswer, around: Winner) -> str:
    """The winner's distance to the next finalist, beside the noise."""
    noise = (result.ci_ms[1] - result.ci_ms[0]) / result.time_ms
    of_noise = f"its own 95 % interval is {formatting.percent(noise)} wide"
    others = sorted(one["time_ms"] for one in around.finalists if one["time_ms"] > result.time_ms)
    if result.ties:
        return f"It is not alone: {formatting.counted(result.ties, 'other finalist')} within the noise; {of_noise}."
    if not others:
        return f"No other finalist was kept to compare it with; {of_noise}."
    return f"The next finalist takes {formatting.percent(others[0] / result.time_ms - 1)} longer; {of_noise}."


def _limit(result: ResultAnswer, around: Winner, details: Mapping[str, Any]) -> str:
    """A sentence on what holds the winner back, as far as rates, resources and the data sheet tell."""
    peak_gb_per_s, trial = details.get("datasheet_gb_per_s"), around.trial
    accuracy = result.problem.options.get("accuracy")
    peaks = details.get("datasheet_gflops") or {}
    peak = peak_gflops(peaks, result.problem.dtype, None if accuracy is None else str(accuracy))
    of_memory = result.gb_per_s / peak_gb_per_s if result.gb_per_s and peak_gb_per_s else None
    is_tensor_peak = peak != peaks.get(result.problem.dtype)
    # Products of parts on tensor cores have no peak in a data sheet: the one of plain arithmetic says nothing of them.
    has_peak = peak is not None and (is_tensor_peak or not result.variant.startswith("tensor"))
    of_arithmetic = result.gflops / peak if has_peak and peak and result.gflops else None
    rates = []
    if of_memory is not None:
        rates.append(f"{formatting.percent(of_memory)} of the memory's bandwidth")
    if of_arithmetic is not None:
        tensor = "the tensor cores" if is_tensor_peak else "the arithmetic units"
        rates.append(f"{formatting.percent(of_arithmetic)} of the peak of {tensor}")
    if not rates:
        return "What limits it is not known: the data sheet of this device model has no rates."
    reached = f"It reaches {' and '.join(rates)}"
    if max(of_memory or 0.0, of_arithmetic or 0.0) >= NEAR_A_LIMIT:
        limit = "memory" if (of_memory or 0.0) >= (of_arithmetic or 0.0) else "arithmetic"
        return f"{reached}: {limit} limits it."
    if of_arithmetic is None:
        return f"{reached}: memory does not limit it; what its arithmetic could reach is not known."
    if trial.spill_bytes:
        return f"{reached}: neither limits it; {formatting.binary_size(trial.spill_bytes)} of spilled registers may."
    if trial.occupancy is not None and trial.occupancy < FEW_WARPS:
        return (
            f"{reached}: neither limits it; few warps hide latency (occupancy {formatting.percent(trial.occupancy)})."
        )
    return f"{reached}: neither limits it; the issue of instructions or waiting does."


def _effect(value: int, steps: Sequence[Step], around: Winner) -> str:
    """The direction of a parameter's effect around the winner, in words."""
    own_ms = around.trial.time_ms
    said = []
    for step in steps:
        word = "smaller" if step.value < value else "larger"
        if step.time_ms is None or own_ms is None:
            said.append(f"{word} fails")
        elif step.time_ms > own_ms:
            said.append(f"{word} is {formatting.percent(step.time_ms / own_ms - 1)} slower")
        else:
            said.append(f"{word} was {formatting.percent(1 - step.time_ms / own_ms)} faster in a single trial")
    return ", ".join(said)
