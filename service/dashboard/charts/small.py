"""Small charts (bar, dots, curve, histogram) as numbers that the templates put into SVG attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.service.dashboard.formatting import decimals_of, ratio, time_column, time_unit

BAR_WIDTH = 80
BAR_OCTAVES = 2.0
"""The bar of a ratio reaches from a quarter to four; what lies beyond ends at the edge, the text has the number."""

DOTS_WIDTH = 220
REACHES = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 64.0, 256.0)
"""Ratios at which an axis has its outer ticks: the largest that fits."""

CURVE_WIDTH, CURVE_HEIGHT = 640, 160
MARGIN = 8


@dataclass(frozen=True)
class Bar:
    """A bar from the middle (level) to the right where ours is faster, to the left where it is slower."""

    x: float
    width: float
    middle: float = BAR_WIDTH / 2

    @classmethod
    def of(cls, ratio: float) -> Bar:
        """The bar of a ratio, on a logarithmic scale."""
        octaves = max(-BAR_OCTAVES, min(BAR_OCTAVES, math.log2(ratio)))
        length = octaves / BAR_OCTAVES * BAR_WIDTH / 2
        return cls(x=round(BAR_WIDTH / 2 + min(length, 0), 1), width=round(max(abs(length), 1), 1))


@dataclass(frozen=True)
class Dot:
    """A ratio as a dot on the line of its interval; `middle` is level."""

    x: float
    left: float
    right: float
    says: str


@dataclass(frozen=True)
class DotPlot:
    """The logarithmic axis that all dots of one table share, with its ticks as (place, text)."""

    octaves: float
    ticks: Sequence[tuple[float, str]]
    width: int = DOTS_WIDTH
    middle: float = DOTS_WIDTH / 2

    @classmethod
    def of(cls, intervals: Sequence[tuple[float, float]]) -> DotPlot:
        """The axis on which all of these fit, level in its middle; at least a tenth to either side."""
        farthest = max((abs(math.log2(bound)) for interval in intervals for bound in interval), default=0.0)
        octaves = max(farthest, math.log2(1.1)) * 1.08
        reach = next((reach for reach in reversed(REACHES) if math.log2(reach) <= octaves), REACHES[0])
        plot = cls(octaves, ())
        return cls(octaves, [(plot.x(value), ratio(value)) for value in (1 / reach, 1.0, reach)])

    def x(self, value: float) -> float:
        """The place of a ratio."""
        share = math.log2(value) / self.octaves
        return round(self.middle + share * (self.middle - MARGIN), 1)

    def dot(self, value: float, interval: tuple[float, float]) -> Dot:
        """The ratio with its interval."""
        low, high = interval
        return Dot(self.x(value), self.x(low), self.x(high), f"{ratio(low)} to {ratio(high)}")


@dataclass(frozen=True)
class Curve:
    """The best time so far over the trials, lower is better, logarithmic: a path, its dots and its two labels."""

    path: str
    dots: Sequence[tuple[float, float]]
    slowest: str
    fastest: str
    trials: int
    width: int = CURVE_WIDTH
    height: int = CURVE_HEIGHT

    @classmethod
    def of(cls, improvements: Sequence[tuple[int, float]], trials: int) -> Curve | None:
        """The curve through every improvement (place from 1, ms) to the last trial; None while nothing is measured."""
        if not improvements:
            return None
        logs = [math.log(time_ms) for _, time_ms in improvements]
        top, bottom = max(logs), min(logs)

        def x(place: int) -> float:
            return round(MARGIN + (CURVE_WIDTH - 2 * MARGIN) * (place - 1) / max(trials - 1, 1), 1)

        def y(log: float) -> float:
            share = (top - log) / (top - bottom) if top > bottom else 0.5
            return round(MARGIN + (CURVE_HEIGHT - 2 * MARGIN) * share, 1)

        dots = [(x(place), y(log)) for (place, _), log in zip(improvements, logs, strict=True)]
        steps = "".join(f"H{left}V{down}" for left, down in dots[1:])
        time_text = time_column([improvements[-1][1]])
        return cls(
            path=f"M{dots[0][0]} {dots[0][1]}{steps}H{x(trials)}",
            dots=dots,
            slowest=time_text(improvements[0][1]),
            fastest=time_text(improvements[-1][1]),
            trials=trials,
        )


BINS = 24
HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT = 640, 120


@dataclass(frozen=True)
class Histogram:
    """Counts of measured times as bars over equal parts of the range, with the median and its interval."""

    bars: Sequence[tuple[float, float, float]]  # x, height, width
    counts: Sequence[tuple[float, float, int]]  # from, to (ms), how many
    median_x: float
    interval_x: tuple[float, float] | None
    low: str
    high: str
    most: int
    width: int = HISTOGRAM_WIDTH
    height: int = HISTOGRAM_HEIGHT

    @classmethod
    def of(
        cls, samples_ms: Sequence[float], median_ms: float | None, ci_ms: tuple[float, float] | None
    ) -> Histogram | None:
        """The histogram of these times; None for fewer than two, and where all are the same."""
        if len(samples_ms) < 2 or median_ms is None or min(samples_ms) == max(samples_ms):
            return None
        low, high = min(samples_ms), max(samples_ms)
        bins = min(BINS, len(samples_ms))
        step = (high - low) / bins
        found = [0] * bins
        for sample in samples_ms:
            found[min(int((sample - low) / step), bins - 1)] += 1
        most, width = max(found), HISTOGRAM_WIDTH / bins

        def x(time_ms: float) -> float:
            return round(min(max((time_ms - low) / (high - low), 0), 1) * HISTOGRAM_WIDTH, 1)

        unit_ms, unit = time_unit([high])
        decimals = decimals_of((high - low) / unit_ms)
        return cls(
            bars=[
                (round(place * width, 1), round(count / most * HISTOGRAM_HEIGHT, 1), round(width - 1, 1))
                for place, count in enumerate(found)
            ],
            counts=[(low + place * step, low + (place + 1) * step, count) for place, count in enumerate(found)],
            median_x=x(median_ms),
            interval_x=(x(ci_ms[0]), x(ci_ms[1])) if ci_ms else None,
            low=f"{low / unit_ms:,.{decimals}f}\N{NO-BREAK SPACE}{unit}",
            high=f"{high / unit_ms:,.{decimals}f}\N{NO-BREAK SPACE}{unit}",
            most=most,
        )
