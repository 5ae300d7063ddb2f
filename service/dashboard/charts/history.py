"""The time of one problem's best, and of the library, over when they were measured."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.parts import ON_ANYTHING, Options, axis, chart, point, time_axis
from tilewright.service.operations.best.history import HistoryEntry

COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4")
SYMBOLS = ("circle", "rect", "triangle", "diamond")
ENVIRONMENT = frozenset({"driver", "toolkit", "compiler"})
"""Changes of the environment, which the chart marks."""

DATES = {"year": "{yyyy}", "month": "{d} {MMM} {yyyy}", "day": "{d} {MMM}", "hour": "{HH}:{mm}", "minute": "{HH}:{mm}"}
"""Labels of the ticks, by the unit that begins there."""


def history_chart(entries: Sequence[HistoryEntry]) -> Options | None:
    """A line for each device model and its library, with a mark where an environment came; None for fewer than two."""
    if len(entries) < 2:
        return None
    by_model: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        by_model.setdefault(entry.device_model, []).append(entry)
    series: list[Options] = []
    for place, (model, own) in enumerate(sorted(by_model.items())):
        colour = COLOURS[place % len(COLOURS)]
        series.append(_best(model, own, colour, SYMBOLS[place % len(SYMBOLS)]))
        if any(entry.library_ms is not None for entry in own):
            series.append(_library(model, own, colour))
    x = axis("verified, UTC", kind="time", boundaryGap=["3%", "3%"], axisLabel={"formatter": DATES})
    times_ms = [time_ms for entry in entries for time_ms in (entry.time_ms, entry.library_ms) if time_ms is not None]
    return chart(x=x, y=time_axis(times_ms), series=series, useUTC=True)


def _best(model: str, own: Sequence[HistoryEntry], colour: str, symbol: str) -> Options:
    return {
        "name": model,
        "type": "line",
        "symbol": symbol,
        "symbolSize": 9,
        "step": "end",
        "lineStyle": {"color": colour},
        "itemStyle": {"color": colour},
        "data": [_point(entry) for entry in own],
        "markLine": {
            "silent": True,
            "symbol": "none",
            "lineStyle": {"color": colour, "type": "dotted"},
            "label": {**ON_ANYTHING, "color": colour, "formatter": "{b}", "position": "insideEndTop"},
            "data": [_mark(entry) for entry in own if ENVIRONMENT & set(entry.changed)],
        },
    }


def _point(entry: HistoryEntry) -> Options:
    """A best; one that is slower than the one before it is red and larger."""
    is_worse = entry.verdict == "worse"
    says = [
        formatting.kernel_time(entry.time_ms) + (", slower than before" if is_worse else ""),
        f"{formatting.environment(entry.environment)}, source {entry.source_hash[:8]}",
        *([f"changed: {', '.join(entry.changed)}"] if entry.changed else []),
    ]
    marked = {"symbolSize": 14, "itemStyle": {"color": "--bad"}} if is_worse else {}
    at = (entry.verified_at.isoformat(), entry.time_ms)
    return point(at, "\n".join(says), f"/studies/{entry.study_id}", **marked)


def _mark(entry: HistoryEntry) -> Options:
    """A mark with the changes of the environment, in short: the point's tooltip has all of it."""
    changed = [name for name in entry.changed if name in ENVIRONMENT]
    return {"xAxis": entry.verified_at.isoformat(), "name": ", ".join(changed)}


def _library(model: str, own: Sequence[HistoryEntry], colour: str) -> Options:
    """The library's time in the same finals."""
    timed = [(entry, entry.library_ms) for entry in own]
    return {
        "name": f"library on {model}",
        "type": "line",
        "symbol": "circle",
        "symbolSize": 4,
        "step": "end",
        "lineStyle": {"color": colour, "type": "dashed"},
        "itemStyle": {"color": colour},
        "data": [
            point((entry.verified_at.isoformat(), time_ms), f"{entry.library_name}\n{formatting.kernel_time(time_ms)}")
            for entry, time_ms in timed
            if time_ms is not None
        ],
    }
