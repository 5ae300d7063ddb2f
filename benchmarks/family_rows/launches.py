"""What a size from the launch costs: a configuration with its rows compiled in and with its rows from the launch."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, closing
from typing import Any

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.devices.device import Device
from tilewright.tuner.errors import TrialFailure

SIZES = (16, 300, 1000, 4096)
SAMPLES = 9
MOST_NAIVE = 300
"""Rows at which the naive variant is timed at most: it takes a hundred times as long."""


def at_launch(device: Device, kernel: Kernel, family: Family, variant: str) -> dict[str, Any]:
    """The ratios of the variant's first starts, compiled in over from the launch, by size; of those that it has."""
    sizes = [size for size in SIZES if size <= family.high and (variant != "naive" or size <= MOST_NAIVE)]
    found = {size: ratio for size in sizes if (ratio := _ratio(device, kernel, family, variant, size))}
    mean = statistics.geometric_mean(found.values()) if found else None
    return {
        "ratios": {str(size): ratio for size, ratio in found.items()},
        "mean": mean,
        "least": min(found.values(), default=None),
    }


def _ratio(device: Device, kernel: Kernel, family: Family, variant: str, size: int) -> float:
    """0 where the variant has no start at that size, or it failed."""
    at, exact = family.at(size), family.exact(size)
    starts = kernel.space(at, device.model.limits, only=[variant]).defaults()
    if not starts:
        return 0.0
    with ExitStack() as stack:
        benches = [stack.enter_context(closing(device.bench(kernel, problem, 1))) for problem in (exact, at)]
        try:
            programs = [bench.compile(starts[0]) for bench in benches]
            if any(not bench.verify(program).is_right for bench, program in zip(benches, programs, strict=True)):
                raise ValueError(f"{variant} is wrong at {size}")
            times: list[list[float]] = [[], []]
            for _ in range(SAMPLES):
                for own, bench, program in zip(times, benches, programs, strict=True):
                    own.append(statistics.median(bench.sample(program, "warm", 3)))
        except TrialFailure as failure:
            print(f"{variant} at {size}: {failure.outcome} {failure.log[:200]}")
            return 0.0
    return statistics.median(times[0]) / statistics.median(times[1])
