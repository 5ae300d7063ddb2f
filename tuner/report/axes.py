"""Axes of charts: where a value lies, and where the ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` laid out by logarithm from `start` to `end`, in the picture's units."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where the value lies; raises ValueError for one that is not above zero."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def log_axis(values: Iterable[float], start: float, end: float, *, by: int = 10) -> Axis:
    """From the power of `by` at or below the least value to that at or above the greatest."""
    known = [value for value in values if value > 0] or [1.0]
    low = math.floor(round(math.log(min(known), by), 9))
    high = max(math.ceil(round(math.log(max(known), by), 9)), low + 1)
    every = max(1, -(-(high - low) // 8))
    ticks = tuple(float(by) ** exponent for exponent in range(low, high + 1, every))
    return Axis(float(by) ** low, float(by) ** high, start, end, ticks=ticks)


def tick_text(value: float) -> str:
    """Short: 0.001, 20, 10k, 2M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= factor:
            return f"{value / (1e3 if letter == 'k' else factor):g}{letter}"
    return f"{value:g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.0e}".replace("e-0", "e-")
