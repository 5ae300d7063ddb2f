"""The charts of one variant's parameters as ECharts options; `study.py` says what a series' `columns` are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.parts import (
    ON_ANYTHING,
    Level,
    Options,
    axis,
    chart,
    levels_of,
    lines_of,
    point,
    time_axis,
)
from tilewright.service.dashboard.charts.study import DOTS
from tilewright.service.operations.studies.importance import Uncertainty
from tilewright.service.operations.studies.space import TIME, Fastest, Selection, VariantTrials

FASTEST_SHARE = 0.05
BIN_LIMIT = 24
"""Values of a parameter that an axis can name."""

LABELLED_COLUMNS, LABELLED_ROWS = 7, 14
"""The most columns and rows of a heat map whose cells show their times; with more, only tooltips do."""

SPREAD_PX = 600
"""Dots of one value lie beside each other over the axis' part of this width."""

Values = Mapping[str, Sequence[int]]
"""The values on the axis of each parameter, rising."""


def value_axis(name: str, values: Values, *, has_dots: bool = False) -> Options:
    """The axis of a parameter: its values at equal distances; `has_dots`: those on one value lie beside each other."""
    made = axis(name, kind="category", data=[str(value) for value in values[name]])
    return made | ({"jitter": min(120, SPREAD_PX // len(values[name])), "jitterOverlap": True} if has_dots else {})


def parallel(of: VariantTrials, values: Values, selection: Selection) -> Options | None:
    """Parallel coordinates of the measured trials, the time last; None while there is nothing to compare."""
    if of.fastest_ms is None or of.slowest_ms is None or not values:
        return None
    axes: list[Options] = [
        {
            "dim": place,
            "id": name,
            "name": name,
            "type": "category",
            "data": [str(value) for value in values[name]],
            "axisLabel": {"interval": 0 if len(values[name]) <= BIN_LIMIT else "auto", **ON_ANYTHING},
        }
        for place, name in enumerate(values)
    ]
    times_ms = [of.fastest_ms, of.slowest_ms]
    time: Options = {
        **time_axis(times_ms),
        "dim": len(values),
        "id": TIME,
        "name": f"{formatting.time_unit(times_ms)[1]}, lower is better",
        "nameLocation": "end",
        "nameTruncate": {"maxWidth": 150},
        "nameTextStyle": {"align": "left"},
    }
    dims = [*values, TIME]
    return {
        "animation": False,
        "tooltip": {"show": False},
        "parallel": {
            "left": 48,
            "right": 128,
            "top": 36,
            "bottom": 24,
            "parallelAxisDefault": {
                "nameLocation": "end",
                "nameGap": 14,
                "nameRotate": 0,
                "areaSelectStyle": {"width": 24, "borderColor": "--text", "color": "--fill", "opacity": 0.25},
            },
        },
        "parallelAxis": [*axes, time],
        "series": [
            _lines(
                "others",
                dims,
                {"color": "--series-1", "opacity": max(0.03, min(0.4, 30 / of.trials)), "width": 1},
            ),
            _lines(
                "fastest", dims, {"color": "--series-2", "opacity": max(0.15, min(0.9, 60 / of.trials)), "width": 1.5}
            ),
        ],
        "selection": {name: list(bounds) for name, bounds in selection.items() if name in dims},
        "values": {name: list(listed) for name, listed in values.items()},
    }


def _lines(part: str, dims: Sequence[str], style: Mapping[str, Any]) -> Options:
    return {
        "name": part,
        "type": "parallel",
        "lineStyle": dict(style),
        "inactiveOpacity": 0.02,
        "activeOpacity": style["opacity"],
        "columns": {"of": "measured", "dims": list(dims), "part": part, "share": FASTEST_SHARE},
    }


def importance(shares: Mapping[str, float], uncertainty: Uncertainty | None) -> Options | None:
    """Bars of the parameters' shares with the intervals of resampled ones; None where there are none."""
    if uncertainty is None:
        return None
    names = list(shares)[::-1]
    bars, spans = [], []
    for name in names:
        low, high = (round(bound * 100, 1) for bound in uncertainty.intervals[name])
        says = f"{name}: {formatting.percent(shares[name])}, {low:g} to {high:g} % of resamples"
        bars.append(point((round(shares[name] * 100, 1), name, low, high), says))
        spans.append({"coords": [[low, name], [high, name]]})
    return chart(
        x=axis("importance, %", min=0),
        y={"type": "category", "data": names},
        series=[
            {"name": "share", "type": "bar", "itemStyle": {"color": "--series-1"}, "barMaxWidth": 18, "data": bars},
            lines_of("interval", spans, "--text") | {"z": 4},
        ],
        named=["importance, %", "parameter", "from", "to"],
        legend=False,
        zooms=False,
    )


def slice_of(
    of: VariantTrials, fastest: Iterable[Fastest], parameter: str, values: Values, levels: Sequence[Level] = ()
) -> Options | None:
    """Time over one parameter's values: the trials as dots, each value's fastest joined by a line."""
    least: dict[int, float] = {}
    for one in fastest:
        if one.time_ms and parameter in one.values:
            value = one.values[parameter]
            least[value] = min(one.time_ms, least.get(value, math.inf))
    if not least or of.slowest_ms is None or parameter not in values:
        return None
    best = [
        point((str(v), least[v]), f"{parameter}={v}\nfastest: {formatting.kernel_time(least[v])}")
        for v in sorted(least)
    ]
    return chart(
        x=value_axis(parameter, values, has_dots=True),
        y=time_axis([of.slowest_ms, *least.values(), *(level.time_ms for level in levels)]),
        series=[
            {"name": "trials", **DOTS, "columns": {"of": "measured", "dims": [parameter, "time"]}},
            {
                "name": "fastest of each value",
                "type": "line",
                "z": 4,
                "lineStyle": {"color": "--series-2"},
                "itemStyle": {"color": "--series-2"},
                "data": best,
            },
            *levels_of(levels),
        ],
        selects=[parameter, TIME],
        values={parameter: list(values[parameter])},
    )


def heat_map(fastest: Iterable[Fastest], across: str, up: str, values: Values) -> Options | None:
    """The fastest time of every pair of values; pairs that only failed carry a mark, pairs never tried stay empty."""
    pairs: dict[tuple[int, int], float | None] = {}
    for one in fastest:
        if across in one.values and up in one.values:
            pair = (one.values[across], one.values[up])
            pairs[pair] = min(filter(None, (pairs.get(pair), one.time_ms)), default=None)
    times = [time_ms for time_ms in pairs.values() if time_ms]
    if not times or across == up or across not in values or up not in values:
        return None
    columns, rows = list(values[across]), list(values[up])
    is_labelled = len(columns) <= LABELLED_COLUMNS and len(rows) <= LABELLED_ROWS
    best, (unit_ms, unit) = min(times), formatting.time_unit(times)
    cells: list[Options] = [
        {
            "value": [columns.index(a), rows.index(b), round(best / time_ms, 4), float(f"{time_ms / unit_ms:.6g}")],
            "name": f"{across}={a} {up}={b}: {formatting.kernel_time(time_ms)}",
            "label": {"formatter": formatting.number(time_ms / unit_ms), **ON_ANYTHING},
        }
        for (a, b), time_ms in sorted(pairs.items())
        if time_ms
    ]
    failed = [
        {"value": [columns.index(a), rows.index(b)], "name": f"{across}={a} {up}={b}: every trial failed"}
        for (a, b), time_ms in sorted(pairs.items())
        if not time_ms
    ]
    return chart(
        x=value_axis(across, values),
        y=value_axis(up, values),
        series=[
            {"name": "fastest", "type": "heatmap", "label": {"show": is_labelled}, "data": cells},
            {
                "name": "failed",
                "type": "scatter",
                "symbol": "path://M1 1L9 9M9 1L1 9",
                "symbolSize": 12,
                "itemStyle": {"color": "none", "borderColor": "--bad", "borderWidth": 2},
                "data": failed,
            },
        ],
        legend=False,
        selects=[across, up],
        values={across: columns, up: rows},
        named=[across, up, "fastest of all over this", f"time, {unit}"],
        visualMap={
            "show": False,
            "seriesIndex": 0,
            "dimension": 2,
            "min": 0,
            "max": 1,
            "inRange": {"color": ["--cold", "--warm"]},
        },
    )


NUMBERS: Mapping[str, str] = {
    "trial": "trial",
    "spent": "seconds spent on trials",
    TIME: "time",
    "gflops": "GFLOP/s",
    "registers": "registers per thread",
    "spill_bytes": "bytes spilled",
    "shared_bytes": "shared memory, bytes per block",
    "occupancy": "occupancy, 0 to 1",
    "compile_ms": "time to compile, ms",
    "bound_ratio": "error over its bound",
}
"""Quantities that a free axis may show beside the parameters, by column."""


def free_axes(of: VariantTrials, x: str, y: str, colour: str, values: Values, levels: Sequence[Level] = ()) -> Options:
    """Any two columns of the variant's measured trials against each other, coloured by a third: the script draws it.

    Empty for a variant of one trial, and where none was measured.
    """
    if of.trials < 2 or of.fastest_ms is None or of.slowest_ms is None:
        return {}
    axes: dict[str, Options] = {name: axis(title, scale=True) for name, title in NUMBERS.items()}
    axes["trial"] |= {"minInterval": 1}
    axes[TIME] = time_axis([of.fastest_ms, of.slowest_ms, *(level.time_ms for level in levels)])
    axes |= {name: value_axis(name, values, has_dots=True) for name in values}
    return {
        "free": {"x": x, "y": y, "colour": colour},
        "axes": axes,
        "frame": chart(x={}, y={}, series=[]),
        "dots": dict(DOTS),
        "levels": levels_of(levels),
        "levels_across": levels_of(levels, is_across=True),
        "values": {name: list(listed) for name, listed in values.items()},
    }
