"""The charts of a study as ECharts options: pure functions of its trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from tilewright.service.dashboard import words
from tilewright.service.dashboard.charts.parts import (
    FAILED_SYMBOLS,
    ON_ANYTHING,
    Options,
    axis,
    chart,
    point,
    time_axis,
)
from tilewright.service.operations.studies.space import TIME, DrawnTrial, Fastest, Selection, StudyDrawing

Over = Literal["trials", "time"]
FASTEST_SHARE = 0.05
BIN_LIMIT = 24
"""Values of a parameter that an axis can name."""

LABELLED_COLUMNS = 7
"""Up to so many columns of a heat map, cells show their times; with more, only tooltips do."""


def says(trial: DrawnTrial) -> str:
    """The tooltip of a trial."""
    what = f"{words.number(trial.time_ms)} ms" if trial.time_ms else trial.outcome.replace("_", " ")
    values = [f"{name}={value}" for name, value in trial.values.items()]
    lines = [" ".join(values[start : start + 4]) for start in range(0, len(values), 4)]
    return "\n".join([f"trial {trial.number}: {what}", trial.variant, *lines])


def best_so_far(drawing: StudyDrawing, study_path: str, over: Over) -> Options | None:
    """Best time over trials or over the seconds they took, every trial as a dot, failures as marks; None: no trial."""
    if not drawing.trials:
        return None

    def x(trial: DrawnTrial) -> float:
        return trial.number if over == "trials" else round(trial.spent_s, 2)

    times = [trial.time_ms for trial in drawing.trials if trial.time_ms] or [1.0]
    y = time_axis(times)
    last = max(x(trial) for trial in drawing.trials)
    measured = [
        point((x(t), t.time_ms), says(t), f"{study_path}/trials/{t.number}") for t in drawing.trials if t.time_ms
    ]
    steps = [point((x(t), t.time_ms or 0), says(t)) for t in drawing.improvements]
    if steps:
        best_ms = drawing.improvements[-1].time_ms or 0
        steps.append(point((last, best_ms), f"best: {words.number(best_ms)} ms"))
    series: list[Options] = [
        {
            "name": "trials",
            "type": "scatter",
            "symbolSize": 5,
            "itemStyle": {"color": "--series-1", "opacity": 0.5},
            "data": measured,
        },
        {
            "name": "best so far",
            "type": "line",
            "step": "end",
            "symbolSize": 6,
            "lineStyle": {"width": 2, "color": "--series-2"},
            "itemStyle": {"color": "--series-2"},
            "data": steps,
        },
        *_failures(drawing, study_path, over, y["max"]),
    ]
    name = "trial" if over == "trials" else "seconds spent on trials"
    return chart(
        x=axis(name, min=0, minInterval=1),
        y=y,
        series=series,
    )


def _failures(drawing: StudyDrawing, study_path: str, over: Over, top: float) -> list[Options]:
    """A series of marks at the upper edge for each outcome that occurred."""
    by_outcome: dict[str, list[Options]] = {}
    for t in drawing.trials:
        if t.time_ms is None:
            x = t.number if over == "trials" else round(t.spent_s, 2)
            by_outcome.setdefault(t.outcome, []).append(point((x, top), says(t), f"{study_path}/trials/{t.number}"))
    return [
        {
            "name": outcome.replace("_", " "),
            "type": "scatter",
            "symbol": FAILED_SYMBOLS.get(outcome, "rect"),
            "symbolSize": 9,
            "itemStyle": {"color": "--bad"},
            "data": points,
        }
        for outcome, points in by_outcome.items()
    ]


def parameters_of(trials: Iterable[DrawnTrial]) -> dict[str, list[int]]:
    """The parameters that vary over these trials of one variant, with the values that occur, rising."""
    occurring: dict[str, set[int]] = {}
    for trial in trials:
        for name, value in trial.values.items():
            occurring.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in occurring.items() if len(values) > 1}


def parallel(trials: Sequence[DrawnTrial], order: Sequence[str], selection: Selection) -> Options | None:
    """Parallel coordinates of the measured trials, the time last; None while there are not two to compare."""
    measured = [t for t in trials if t.time_ms]
    values = parameters_of(measured)
    names = [name for name in order if name in values]
    if len(measured) < 2 or not names:
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
        for place, name in enumerate(names)
    ]
    time = time_axis([t.time_ms for t in measured if t.time_ms])
    axes.append(
        {
            **time,
            "dim": len(names),
            "id": TIME,
            "name": "ms, lower is better",
            "nameLocation": "end",
            "nameTruncate": {"maxWidth": 150},
            "nameTextStyle": {"align": "left"},
        }
    )
    ranked = sorted(measured, key=lambda t: -(t.time_ms or 0))
    fast = max(1, math.ceil(len(ranked) * FASTEST_SHARE))
    return {
        "animation": False,
        "tooltip": {"show": False},
        "parallel": {
            "left": 32,
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
        "parallelAxis": axes,
        "series": [
            _lines(
                "others",
                ranked[:-fast],
                names,
                {"color": "--series-1", "opacity": max(0.06, min(0.4, 30 / len(ranked))), "width": 1},
            ),
            _lines("fastest 5 %", ranked[-fast:], names, {"color": "--series-2", "opacity": 0.9, "width": 1.5}),
        ],
        "selection": {name: list(bounds) for name, bounds in selection.items()},
        "values": values,
    }


def _lines(name: str, trials: Sequence[DrawnTrial], names: Sequence[str], style: Mapping[str, Any]) -> Options:
    return {
        "name": name,
        "type": "parallel",
        "lineStyle": dict(style),
        "inactiveOpacity": 0.03,
        "activeOpacity": style["opacity"],
        "data": [[*(str(t.values[n]) for n in names), t.time_ms] for t in trials if all(n in t.values for n in names)],
    }


def importances(trials: Sequence[DrawnTrial]) -> dict[str, float]:
    """For each parameter the share of the variance of log time that its values alone explain, the largest first."""
    logs = [(t.values, math.log(t.time_ms)) for t in trials if t.time_ms]
    if len(logs) < 3:
        return {}
    mean = fmean(log for _, log in logs)
    total = sum((log - mean) ** 2 for _, log in logs)
    if total == 0:
        return {}
    shares = {}
    for name in parameters_of(t for t in trials if t.time_ms):
        by_value: dict[int, list[float]] = {}
        for values, log in logs:
            if name in values:
                by_value.setdefault(values[name], []).append(log)
        shares[name] = sum(len(group) * (fmean(group) - mean) ** 2 for group in by_value.values()) / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def importance(shares: Mapping[str, float]) -> Options | None:
    """Bars of `importances`; None where there are none."""
    if not shares:
        return None
    names = list(shares)[::-1]
    bars = [point((round(shares[name] * 100, 1), name), f"{name}: {words.percent(shares[name])}") for name in names]
    return chart(
        x=axis("share of the variance of log time, %", min=0),
        y={"type": "category", "data": names},
        series=[{"type": "bar", "itemStyle": {"color": "--series-1"}, "barMaxWidth": 18, "data": bars}],
        legend=False,
    )


def slice_of(
    trials: Sequence[DrawnTrial], fastest: Iterable[Fastest], parameter: str, study_path: str
) -> Options | None:
    """Time over one parameter's values: the trials as dots, each value's fastest of all joined by a line."""
    own = [t for t in trials if t.time_ms and parameter in t.values]
    least: dict[int, float] = {}
    for one in fastest:
        if one.time_ms and parameter in one.values:
            value = one.values[parameter]
            least[value] = min(one.time_ms, least.get(value, math.inf))
    if not least:
        return None
    values = sorted(least)
    dots = [point((str(t.values[parameter]), t.time_ms or 0), says(t), f"{study_path}/trials/{t.number}") for t in own]
    best = [point((str(v), least[v]), f"{parameter}={v}\nfastest: {words.number(least[v])} ms") for v in values]
    return chart(
        x=axis(parameter, kind="category", data=[str(value) for value in values]),
        y=time_axis([*(t.time_ms for t in own if t.time_ms), *least.values()]),
        series=[
            {
                "name": "trials",
                "type": "scatter",
                "symbolSize": 5,
                "itemStyle": {"color": "--series-1", "opacity": 0.5},
                "data": dots,
            },
            {
                "name": "fastest of each value",
                "type": "line",
                "lineStyle": {"color": "--series-2"},
                "itemStyle": {"color": "--series-2"},
                "data": best,
            },
        ],
    )


def heat_map(fastest: Iterable[Fastest], across: str, up: str) -> Options | None:
    """The fastest time of every pair of values; pairs that only failed carry a mark, pairs never tried stay empty."""
    pairs: dict[tuple[int, int], float | None] = {}
    for one in fastest:
        if across in one.values and up in one.values:
            pair = (one.values[across], one.values[up])
            pairs[pair] = min(filter(None, (pairs.get(pair), one.time_ms)), default=None)
    times = [time_ms for time_ms in pairs.values() if time_ms]
    if not times or across == up:
        return None
    columns, rows = sorted({a for a, _ in pairs}), sorted({b for _, b in pairs})
    best = min(times)
    cells: list[Options] = [
        {
            "value": [columns.index(a), rows.index(b), round(best / time_ms, 4)],
            "name": f"{across}={a} {up}={b}: {words.number(time_ms)} ms",
            "label": {"formatter": words.number(time_ms), **ON_ANYTHING},
        }
        for (a, b), time_ms in pairs.items()
        if time_ms
    ]
    failed = [
        {"value": [columns.index(a), rows.index(b)], "name": f"{across}={a} {up}={b}: every trial failed"}
        for (a, b), time_ms in pairs.items()
        if not time_ms
    ]
    return chart(
        x=axis(across, kind="category", data=[str(value) for value in columns]),
        y=axis(up, kind="category", data=[str(value) for value in rows]),
        series=[
            {"name": "fastest", "type": "heatmap", "label": {"show": len(columns) <= LABELLED_COLUMNS}, "data": cells},
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
        visualMap={
            "show": False,
            "seriesIndex": 0,
            "dimension": 2,
            "min": 0,
            "max": 1,
            "inRange": {"color": ["--cold", "--warm"]},
        },
    )
