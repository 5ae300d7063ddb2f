"""A few configurations whose ranges cover an axis with the least loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration

MOST_RANGES = 32
"""The best height of a tile follows the number of rows: in bfloat16 eight configurations for 1 to 8192 rows of 4096 x
4096 lost 20 % in the mean and 46 % at most of what a search for each size found (H200, 2026-11-30)."""

NO_GAIN = 0.004
"""A further range must lower the mean loss by this much, which is within the noise: each is a module to load and
verify. With a quarter of it a layer in FP32 had all MOST_RANGES ranges of 16 configurations (H200, 2026-12-01)."""

Times = Mapping[Configuration, Mapping[int, float]]
"""Measured times in ms by configuration and size; a size that a configuration failed at, or may not have, is absent."""


@dataclass(frozen=True)
class Span:
    """Sizes from `low` to `high`, and the configuration that serves them.

    `is_library`: the library's call serves them where it can be made.
    """

    low: int
    high: int
    configuration: Configuration
    is_library: bool = False


class NoCoverError(ValueError):
    """Some size was measured with no configuration."""


def cover(times: Times, low: int, high: int, most: int = MOST_RANGES) -> list[Span]:
    """At most `most` spans from `low` to `high`, in order; raises NoCoverError.

    The loss at a measured size is the logarithm of the chosen configuration's time over the best one's; its mean over
    the sizes is the least that so many spans can have. Fewer are taken where more would hardly lower it. Spans meet
    between two measured sizes, where the lines through the times of both configurations cross.
    """
    sizes = sorted({size for of_one in times.values() for size in of_one})
    best = {size: min(of_one[size] for of_one in times.values() if size in of_one) for size in sizes}
    if not sizes:
        raise NoCoverError("nothing was measured")
    configurations = sorted(times)
    losses = [
        [math.log(times[one][size] / best[size]) if size in times[one] else math.inf for size in sizes]
        for one in configurations
    ]
    segments, numbers = _segments(np.array(losses))
    found = _cheapest(segments, min(most, len(sizes)))
    chosen = [(sizes[first], sizes[last], configurations[numbers[first, last]]) for first, last in found]
    return _met(_joined(chosen), times, low, high)


def mean_loss(spans: Sequence[Span], times: Times) -> tuple[float, float]:
    """The mean and the largest loss of the spans at the measured sizes, as time over the best one's, minus 1."""
    ratios = []
    for size in sorted({size for of_one in times.values() for size in of_one}):
        best = min(of_one[size] for of_one in times.values() if size in of_one)
        ratios.append(times[serving(spans, size)][size] / best)
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) - 1, max(ratios) - 1


def serving(spans: Sequence[Span], size: int) -> Configuration:
    """The configuration that serves that size; beyond the last span, the last one's."""
    return next((span.configuration for span in spans if size <= span.high), spans[-1].configuration)


def _segments(losses: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The summed loss of each run of sizes, by its first and its last, and the number of the best configuration.

    `losses`: by configuration and size.
    """
    count = losses.shape[1]
    least, best = np.full((count, count), np.inf), np.zeros((count, count), np.intp)
    is_run = np.tri(count, dtype=bool).T
    for number, of_one in enumerate(losses):
        is_open = np.isfinite(of_one)
        total = np.concatenate(([0.0], np.cumsum(np.where(is_open, of_one, 0.0))))
        gaps = np.concatenate(([0], np.cumsum(~is_open)))
        is_served = is_run & (gaps[None, 1:] == gaps[:-1, None])
        summed = np.where(is_served, total[None, 1:] - total[:-1, None], np.inf)
        is_less = summed < least
        least[is_less], best[is_less] = summed[is_less], number
    return least, best


def _cheapest(segments: NDArray[np.float64], most: int) -> list[tuple[int, int]]:
    """The runs of the cheapest cover with at most that many, or with fewer that cost hardly more."""
    count = len(segments)
    # least[used][end]: the summed loss of the first `end` sizes in `used` runs; begins: where the last of them begins.
    least, begins = [np.array([0.0] + [np.inf] * count)], [np.zeros(count + 1, np.intp)]
    for _ in range(most):
        totals = least[-1][:count, None] + segments
        begins.append(np.concatenate(([0], totals.argmin(axis=0))))
        least.append(np.concatenate(([np.inf], totals.min(axis=0))))
    complete = [used for used in range(1, most + 1) if np.isfinite(least[used][count])]
    if not complete:
        raise NoCoverError("some sizes were measured with no configuration")
    lowest = min(least[used][count] for used in complete)
    used = next(used for used in complete if (least[used][count] - lowest) / count <= NO_GAIN)
    runs, end = [], count
    for row in reversed(begins[1 : used + 1]):
        first = int(row[end])
        runs.append((first, end - 1))
        end = first
    return runs[::-1]


def _joined(chosen: Sequence[tuple[int, int, Configuration]]) -> list[tuple[int, int, Configuration]]:
    joined: list[tuple[int, int, Configuration]] = []
    for first, last, configuration in chosen:
        if joined and joined[-1][2] == configuration:
            joined[-1] = joined[-1][0], last, configuration
        else:
            joined.append((first, last, configuration))
    return joined


def _met(chosen: Sequence[tuple[int, int, Configuration]], times: Times, low: int, high: int) -> list[Span]:
    """Joins spans, so that no gap is left between them."""
    ends = [
        crossing(times[one], times[next_one], last, first) for (_, last, one), (first, _, next_one) in pairwise(chosen)
    ]
    starts = [low, *(end + 1 for end in ends)]
    return [
        Span(start, end, configuration)
        for start, end, (_, _, configuration) in zip(starts, [*ends, high], chosen, strict=True)
    ]


def crossing(one: Mapping[int, float], other: Mapping[int, float], below: int, above: int) -> int:
    """The last size that the first of two spans serves, at most `above` - 1: lines through their times cross there."""
    if not all(size in of_one for of_one in (one, other) for size in (below, above)):
        return above - 1 if above in one else below  # whoever was right at both ends serves what is between them
    lead, lag = other[below] - one[below], one[above] - other[above]
    share = 0.5 if lead + lag <= 0 else min(1.0, max(0.0, lead / (lead + lag)))
    return min(above - 1, max(below, below + round(share * (above - below))))
