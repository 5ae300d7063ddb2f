"""Building blocks of all charts: axes with their direction, colours by name, points with tooltips.

A chart is a plain dictionary of ECharts options. A text that begins with `--` names a colour of the style sheet, which
the drawing script fills in, light or dark. `href` of a point is where a click on it leads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.dashboard import formatting

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
    "interrupted": "emptyCircle",
}


DATES: Mapping[str, str] = {
    "year": "{yyyy}",
    "month": "{yyyy}-{MM}",
    "day": "{yyyy}-{MM}-{dd}",
    "hour": "{MM}-{dd} {HH}:{mm}",
    "minute": "{HH}:{mm}",
    "second": "{HH}:{mm}:{ss}",
}
"""The formats of the marks of an axis of dates, by the distance of the marks."""


def axis(name: str, *, kind: str = "value", direction: str | None = None, **more: Any) -> Options:
    """An axis whose title has the unit and the better direction."""
    title = f"{name}, {direction} is better" if direction else name
    labels = {"axisLabel": {"formatter": dict(DATES)}} if kind == "time" else {}
    return {"type": kind, "name": title, "nameLocation": "middle", **labels, **more}


def point(value: Sequence[float | str], says: str, href: str | None = None, **more: Any) -> Options:
    """A point with the text of its tooltip."""
    return {"value": list(value), "name": says, **({"href": href} if href else {}), **more}


@dataclass(frozen=True)
class Level:
    """A time to compare with, such as the library's: a line through a chart of times."""

    name: str
    time_ms: float
    colour: str
    kind: str = "dashed"


def levels_of(levels: Sequence[Level], *, is_across: bool = False) -> list[Options]:
    """The levels as series without points, so that the legend names them and can hide them.

    `is_across`: the times are on the x axis.
    """
    return [
        {
            "name": f"{level.name} {formatting.kernel_time(level.time_ms)}",
            "type": "line",
            "symbol": "none",
            "itemStyle": {"color": level.colour},
            "lineStyle": {"color": level.colour, "type": level.kind, "width": 2},
            "data": [],
            "markLine": {
                "silent": True,
                "symbol": "none",
                "label": {"show": False},
                "lineStyle": {"color": level.colour, "type": level.kind, "width": 2},
                "data": [{"xAxis" if is_across else "yAxis": level.time_ms}],
            },
        }
        for level in levels
    ]


def lines_of(name: str, data: Sequence[Options], colour: str, kind: str = "solid") -> Options:
    """Lines that only accompany points: the table behind the chart has none of them."""
    return {
        "name": name,
        "type": "lines",
        "coordinateSystem": "cartesian2d",
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": colour, "width": 2, "type": kind, "opacity": 1, "curveness": 0},
        "itemStyle": {"color": colour},
        "data": list(data),
    }


ZOOM: Sequence[Options] = [
    {
        "type": "inside",
        f"{axis_name}AxisIndex": 0,
        "filterMode": "none",
        "zoomOnMouseWheel": "ctrl",  # the wheel alone scrolls the page
        "moveOnMouseMove": "shift",
        "preventDefaultMouseMove": False,
    }
    for axis_name in "xy"
]


def chart(
    *,
    x: Options,
    y: Options,
    series: Sequence[Options],
    legend: bool | Sequence[str] = True,
    zooms: bool = True,
    selects: Sequence[str | None] | None = None,
    **more: Any,
) -> Options:
    """A chart with one x and one y axis. `legend`: the names of the series in it; True: of all.

    `selects`: which columns of trials x and y stand for, where a rectangle over the chart selects trials.
    """
    named = {} if isinstance(legend, bool) else {"data": list(legend)}
    return {
        "animation": False,
        "aria": {"enabled": False},  # the figure has its own label
        "grid": {"left": 12, "right": 24, "top": 64 if legend else 32, "bottom": 30, "containLabel": True},
        "legend": {"show": bool(legend), "type": "scroll", "top": 0, "left": 0, **named},
        "tooltip": {"trigger": "item", "formatter": "{b}"},
        "xAxis": {"nameGap": 28, **x},
        "yAxis": {**y, "nameLocation": "end", "nameGap": 12, "nameTextStyle": {"align": "left"}},
        **({"dataZoom": list(ZOOM)} if zooms else {}),
        **({"selects": list(selects)} if selects else {}),
        "series": list(series),
        **more,
    }


def time_axis(times_ms: Sequence[float]) -> Options:
    """The axis for these times, between readable numbers: logarithmic if they differ more than threefold.

    Its values are in ms; the drawing script shows them in units of `unit_ms`, as its title says.
    """
    low, high = min(times_ms), max(times_ms)
    unit_ms, unit = formatting.time_unit(times_ms)
    title = axis(f"time, {unit}", direction="lower") | {"unit_ms": unit_ms}
    if high / low > LINEAR_UP_TO:
        return title | {"type": "log", "logBase": 10, "min": _readable(low, is_above=False), "max": _readable(high)}
    step = _step(max(high - low, low * CLOSEST) if high > low else low / 5)

    def at(count: int) -> float:
        return float(f"{count * step:.12g}")  # 0.7, not 0.7000000000000001

    first, last = math.floor(low / step - MARGIN), math.ceil(high / step + MARGIN)
    return title | {"min": at(first), "max": at(last), "splitNumber": last - first}


def _readable(value: float, *, is_above: bool = True) -> float:
    """The nearest number above, or below, that is 1, 2 or 5 times a power of ten and not the value itself."""
    exponent = math.floor(math.log10(value))
    marks = [float(f"{factor}e{power}") for power in (exponent - 1, exponent, exponent + 1) for factor in (1, 2, 5)]
    return min(m for m in marks if m > value) if is_above else max(m for m in marks if m < value)


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, about five to a span: an axis that ends at one of its marks is read best."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 5 * 0.999)
