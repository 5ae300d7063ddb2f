"""Building blocks of all charts: axes with their direction, colours by name, points with tooltips.

A chart is a plain dictionary of ECharts options. A text that begins with `--` names a colour of the style sheet, which
the drawing script fills in, light or dark. `href` of a point is where a click on it leads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Options = dict[str, Any]

LINEAR_UP_TO = 3.0
"""Ratio of the slowest to the fastest time up to which a linear axis shows both well."""

CLOSEST = 1e-6
"""Part of a time below which two of them are drawn as one: far above what twelve digits of an axis' ends leave out."""

MARGIN = 0.3
"""Room in steps of the axis between its ends and the outermost points."""

ON_ANYTHING: Options = {"color": "--text", "textBorderColor": "--ground", "textBorderWidth": 3}
"""Text over lines, points or colour: its outline keeps it readable."""

FAILED_SYMBOLS: Mapping[str, str] = {
    "compile_failed": "triangle",
    "launch_failed": "diamond",
    "wrong_result": "rect",
    "timed_out": "pin",
    "constraint_violated": "arrow",
    "device_lost": "roundRect",
}


def axis(name: str, *, kind: str = "value", direction: str | None = None, **more: Any) -> Options:
    """An axis whose title has the unit and the better direction."""
    title = f"{name}, {direction} is better" if direction else name
    return {"type": kind, "name": title, "nameLocation": "middle", **more}


def point(value: Sequence[float | str], says: str, href: str | None = None, **more: Any) -> Options:
    """A point with the text of its tooltip."""
    return {"value": list(value), "name": says, **({"href": href} if href else {}), **more}


def chart(
    *, x: Options, y: Options, series: Sequence[Options], legend: bool | Sequence[str] = True, **more: Any
) -> Options:
    """A chart with one x and one y axis. `legend`: the names of the series in it; True: of all."""
    named = {} if isinstance(legend, bool) else {"data": list(legend)}
    return {
        "animation": False,
        "aria": {"enabled": False},  # the figure has its own label
        "grid": {"left": 12, "right": 24, "top": 64 if legend else 32, "bottom": 30, "containLabel": True},
        "legend": {"show": bool(legend), "type": "scroll", "top": 0, "left": 0, **named},
        "tooltip": {"trigger": "item", "formatter": "{b}"},
        "xAxis": {"nameGap": 28, **x},
        "yAxis": {**y, "nameLocation": "end", "nameGap": 12, "nameTextStyle": {"align": "left"}},
        "series": list(series),
        **more,
    }


def time_axis(times_ms: Sequence[float]) -> Options:
    """The axis for these times: logarithmic between powers of two if they differ more than threefold, else linear."""
    low, high = min(times_ms), max(times_ms)
    title = axis("time, ms", direction="lower")
    if high / low > LINEAR_UP_TO:
        bounds = {"min": 2.0 ** math.floor(math.log2(low)), "max": 2.0 ** math.ceil(math.log2(high) + 1e-9)}
        return title | {"type": "log", "logBase": 2} | bounds
    step = _step(max(high - low, low * CLOSEST) if high > low else low / 5)

    def at(count: int) -> float:
        return float(f"{count * step:.12g}")  # 0.7, not 0.7000000000000001

    return title | {"min": at(math.floor(low / step - MARGIN)), "max": at(math.ceil(high / step + MARGIN))}


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, about five to a span: an axis that ends at one of its marks is read best."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 5 * 0.999)
