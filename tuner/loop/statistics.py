"""Statistics of noisy times: medians, intervals without assumptions on the noise, ties, settling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95

FEWEST_OF_AN_INTERVAL = 6
"""The range of fewer samples does not cover the true median 95 times in 100."""

_FEWEST_AT_AN_END = 3
"""Two and two do not overlap by chance once in three."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float

    def relative_width(self, centre: float) -> float:
        """Half the width over `centre`."""
        return (self.high - self.low) / 2 / centre


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle."""
    return _quantile(sorted(samples), 0.5)


def spread(samples: Sequence[float]) -> float:
    """The interquartile range (linear between samples); 0 for a single sample."""
    ordered = sorted(samples)
    return _quantile(ordered, 0.75) - _quantile(ordered, 0.25)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """An interval for the true median from order statistics; holds for any noise whose samples are independent.

    Fewer than FEWEST_OF_AN_INTERVAL cannot reach 95 %: then it is their whole range, and covers 1 - 2^(1 - n).
    """
    ordered = sorted(samples)
    cut = _tail_rank(len(ordered), confidence)
    return Interval(ordered[cut], ordered[-1 - cut])


def ratio_interval(
    times: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, Interval]:
    """The median of times over others, round by round, and its interval.

    Pairs of the same round share the clock and the temperature of that moment, which the ratio cancels.
    """
    ratios = [a / b for a, b in zip(times, others, strict=True)]
    return median(ratios), median_interval(ratios, confidence)


def is_tie(times: Sequence[float], others: Sequence[float], confidence: float = CONFIDENCE) -> bool:
    """Whether these rounds cannot tell which of the two is faster."""
    _, interval = ratio_interval(times, others, confidence)
    return interval.low <= 1 <= interval.high


def is_settled(samples: Sequence[float], window: int, tolerance: float) -> bool:
    """Whether the last `window` samples have the median of the `window` before them, within a relative `tolerance`."""
    if len(samples) < 2 * window:
        return False
    before, last = median(samples[-2 * window : -window]), median(samples[-window:])
    return abs(last - before) <= tolerance * before


def is_clearly_slower(
    samples: Sequence[float], incumbent_ms: float, margin: float, few_margin: float, single_margin: float
) -> bool:
    """Whether more samples would not save this configuration: its interval lies above the incumbent by `margin`.

    Too few samples for an interval must all lie above by `few_margin`, fewer than three by `single_margin`.
    """
    if len(samples) < FEWEST_OF_AN_INTERVAL:
        return min(samples) > incumbent_ms * (1 + (single_margin if len(samples) < 3 else few_margin))
    return median_interval(samples).low > incumbent_ms * (1 + margin)


def drift(values: Sequence[float]) -> float:
    """The ratio of the medians of the last values and the first, minus 1.

    Zero where the ends overlap, which for noise alone they do 97 times in 100 (four of eleven values at each end), and
    where there are too few to tell.
    """
    count = min(len(values) // 3 + 1, len(values) // 2)
    first, last = values[:count], values[len(values) - count :]
    if count < _FEWEST_AT_AN_END or (min(last) <= max(first) and min(first) <= max(last)):
        return 0.0
    return median(last) / median(first) - 1


def is_time(value: float) -> bool:
    """Whether a device's number can be a time: finite and above zero."""
    return math.isfinite(value) and value > 0


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@cache
def _tail_rank(count: int, confidence: float) -> int:
    """How many samples may be cut from each end so that the rest still covers the median: binomial tail, p = 1/2."""
    tail, best = 0.0, 0
    for cut in range((count - 1) // 2 + 1):
        tail += math.comb(count, cut) / 2**count
        if tail > (1 - confidence) / 2:
            break
        best = cut
    return best
