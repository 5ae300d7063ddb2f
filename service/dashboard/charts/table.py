"""The time of a family over the sizes of its axis: ours, the library's, and where the configuration changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.parts import ON_ANYTHING, Options, axis, chart, point, time_axis
from tilewright.service.operations.best.tables import MeasuredSizeAnswer, SizeRangeAnswer, TableAnswer


def table_chart(table: TableAnswer) -> Options:
    """Times of ours and the library over sizes, marks where ranges begin, dots where others are faster."""
    library = [(one, one.library_ms) for one in table.measured if one.library_ms is not None]
    behind = [one for one in table.measured if one.best_ms < one.time_ms]
    series: list[Options] = [
        {
            "name": "ours",
            "type": "line",
            "symbol": "circle",
            "symbolSize": 8,
            "lineStyle": {"color": "--series-1"},
            "itemStyle": {"color": "--series-1"},
            "data": [
                point((one.size, one.time_ms), _says(table, one, one.time_ms, _serving(table, one.size)))
                for one in table.measured
            ],
            "markLine": {
                "silent": True,
                "symbol": "none",
                "lineStyle": {"color": "--edge", "type": "dotted"},
                "label": {**ON_ANYTHING, "formatter": "{b}", "position": "end", "offset": [8, 18]},
                "data": list(_changes(table)),
            },
        }
    ]
    if library:
        says = table.library or "library"
        points = [point((one.size, time_ms), _says(table, one, time_ms, says)) for one, time_ms in library]
        series.append(
            {
                "name": "library",
                "type": "line",
                "symbol": "rect",
                "symbolSize": 5,
                "lineStyle": {"color": "--series-2", "type": "dashed"},
                "itemStyle": {"color": "--series-2"},
                "data": points,
            }
        )
    if behind:
        series.append(
            {
                "name": "fastest configuration of all",
                "type": "scatter",
                "symbol": "triangle",
                "symbolSize": 8,
                "itemStyle": {"color": "--series-3"},
                "data": [point((one.size, one.best_ms), _says(table, one, one.best_ms, one.best)) for one in behind],
            }
        )
    low, high = table.ranges[0].low, table.ranges[-1].high
    times_ms = [each for one in table.measured for each in (one.time_ms, one.best_ms)] + [ms for _, ms in library]
    x = axis(table.at_launch, kind="log", logBase=10, min=low, max=max(high, low + 1))
    return chart(x=x, y=time_axis(times_ms), series=series)


def _serving(table: TableAnswer, size: int) -> str:
    one = next(one for one in table.ranges if size <= one.high)
    return _words(table, one)


def _words(table: TableAnswer, one: SizeRangeAnswer) -> str:
    return f"{one.variant} {formatting.configuration(table.kernel, one.variant, one.configuration)}"


def _says(table: TableAnswer, one: MeasuredSizeAnswer, time_ms: float, who: str) -> str:
    return f"{table.at_launch}={one.size}: {formatting.kernel_time(time_ms)}\n{who}"


def _changes(table: TableAnswer) -> Iterator[Options]:
    """A mark where each range but the first begins, with its number in the table below the chart."""
    for number, (before, after) in enumerate(pairwise(table.ranges), start=2):
        yield {"xAxis": (before.high * after.low) ** 0.5, "name": f"{number}"}
