"""A study's search as ECharts options: the best time so far, over trials and over seconds.

A series with `columns` has no points here: the drawing script fills them in from the columns of the study's trials
(`packed.py`). `of` says which trials: measured ones, or those of another outcome; `dims` are names of columns or a
number; `part` is `fastest` or `others` of the variant's trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.parts import (
    FAILED_SYMBOLS,
    Level,
    Options,
    axis,
    chart,
    levels_of,
    point,
    time_axis,
)
from tilewright.service.operations.studies.space import Improvement, Search

Over = Literal["trial", "spent"]

DOTS: Mapping[str, Any] = {
    "type": "scatter",
    "large": True,
    "largeThreshold": 1000,
    "progressive": 0,  # in parts, half-transparent ones would overlap
    "symbolSize": 4,
    "itemStyle": {"color": "--series-1", "opacity": 0.5},
}
"""Trials as dots: many of them are one shape, drawn at once."""


def says(trial: Improvement) -> str:
    """The tooltip of an improvement."""
    values = [f"{name}={value}" for name, value in trial.values.items()]
    lines = [" ".join(values[start : start + 4]) for start in range(0, len(values), 4)]
    return "\n".join([f"trial {trial.number}: {formatting.kernel_time(trial.time_ms)}", trial.variant, *lines])


def best_so_far(
    search: Search | None, over: Over, failures: Iterable[str] = (), levels: Sequence[Level] = ()
) -> Options | None:
    """Best time over trials or over the seconds they took, with every trial and failure; None: none was measured.

    `failures` are the outcomes that occurred beside `measured`.
    """
    if search is None or not search.improvements:
        return None
    y = time_axis([*search.extent_ms, *(level.time_ms for level in levels)])
    steps = [
        point((one.number if over == "trial" else round(one.spent_s, 2), one.time_ms), says(one))
        for one in search.improvements
    ]
    best_ms = search.improvements[-1].time_ms
    last = search.last_number if over == "trial" else round(search.spent_s, 2)
    steps.append(point((last, best_ms), f"fastest: {formatting.kernel_time(best_ms)}"))
    best = {
        "name": "best so far",
        "type": "line",
        "step": "end",
        "symbolSize": 6,
        "z": 4,
        "lineStyle": {"width": 2, "color": "--series-2"},
        "itemStyle": {"color": "--series-2"},
        "data": steps,
    }
    return chart(
        x=axis("trial" if over == "trial" else "seconds spent on trials", min=0, minInterval=1),
        y=y,
        series=[
            {"name": "trials", **DOTS, "columns": {"of": "measured", "dims": [over, "time"]}},
            best,
            *(_failed(outcome, over, y["max"]) for outcome in failures),
            *levels_of(levels),
        ],
        selects=[over, "time"],
    )


def _failed(outcome: str, over: Over, top: float) -> Options:
    """Marks at the upper edge for the trials of one outcome."""
    return {
        "name": outcome.replace("_", " "),
        "type": "scatter",
        "symbol": FAILED_SYMBOLS.get(outcome, "rect"),
        "symbolSize": 7,
        "large": True,
        "largeThreshold": 1000,
        "progressive": 0,
        "itemStyle": {"color": "--bad"},
        "columns": {"of": outcome, "dims": [over, top]},
    }
