"""The two small charts, as numbers that the templates put into SVG attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.service.dashboard.words import decimals_of

BAR_WIDTH = 80
BAR_OCTAVES = 2.0
"""The bar of a ratio reaches from a quarter to four; what lies beyond ends at the edge, the text has the number."""

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
        decimals = decimals_of(improvements[-1][1])
        return cls(
            path=f"M{dots[0][0]} {dots[0][1]}{steps}H{x(trials)}",
            dots=dots,
            slowest=f"{improvements[0][1]:,.{decimals}f}",
            fastest=f"{improvements[-1][1]:,.{decimals}f}",
            trials=trials,
        )
