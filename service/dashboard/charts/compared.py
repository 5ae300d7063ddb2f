"""Charts that compare: two sides shape by shape, and the searches of one problem laid over one another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.history import COLOURS, SYMBOLS
from tilewright.service.dashboard.charts.parts import Options, axis, chart, lines_of, point, time_axis
from tilewright.service.dashboard.charts.small import REACHES
from tilewright.service.dashboard.charts.study import Over
from tilewright.service.dashboard.views import problem_path
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.studies.studies import JobStep
from tilewright.service.operations.views.compared import ComparedRow

STYLES: dict[str, dict[str, Any]] = {
    "better": {"symbol": "triangle", "itemStyle": {"color": "--good"}},
    "worse": {"symbol": "path://M0 0L10 0L5 9Z", "itemStyle": {"color": "--bad"}},
    "same": {"symbol": "circle", "itemStyle": {"color": "--edge"}},
}
"""The style of each verdict, in the order of the legend; styles differ without colour as well."""


def ratio_chart(rows: Sequence[ComparedRow]) -> Options | None:
    """B's speed relative to A's for each row, in order, on a line as wide as the noise; None for fewer than two."""
    places = {formatting.problem_text(row.problem): row for row in rows if row.speedup and row.interval}
    if len(places) < 2:
        return None
    farthest = max(abs(math.log(bound)) for row in places.values() for bound in row.interval or ())
    reach = next((reach for reach in REACHES if math.log(reach) >= farthest), math.exp(farthest) * 1.1)
    names = list(places)
    series = [lines_of("level", [_segment(names[0], 1.0, names[-1], 1.0)], "--edge", kind="dashed")]
    for verdict, style in STYLES.items():
        own = {name: row for name, row in places.items() if row.verdict == verdict}
        if own:
            dots = [_dot(name, row) for name, row in own.items()]
            series.append({"name": verdict, "type": "scatter", "symbolSize": 9, "z": 4, **style, "data": dots})
            spans = [
                _segment(name, row.interval[0], name, row.interval[1]) for name, row in own.items() if row.interval
            ]
            series.append(lines_of(verdict, spans, style["itemStyle"]["color"]))
    return chart(
        x=axis("problem, in the order of the table", kind="category", data=names, nameGap=8, axisLabel={"show": False}),
        y=axis("speed of B relative to A", kind="log", direction="higher", logBase=10, min=1 / reach, max=reach),
        series=series,
        legend=[verdict for verdict in STYLES if any(row.verdict == verdict for row in places.values())],
        named=["problem", "speed of B relative to A", "interval from", "to"],
    )


def _dot(name: str, row: ComparedRow) -> Options:
    low, high = row.interval or (0.0, 0.0)
    says = (
        f"{name}\n{formatting.ratio(row.speedup)}, {formatting.ratio(low)} to {formatting.ratio(high)}: {row.verdict}"
    )
    return point((name, row.speedup or 0.0, low, high), says, problem_path(row.problem))


def _segment(x: str, y: float, x_end: str, y_end: float) -> Options:
    return {"coords": [[x, y], [x_end, y_end]]}


KINDS = ("solid", "dashed", "dotted")
"""Lines of further device models once the colours are used up."""


def searches_chart(jobs: Sequence[JobAnswer], steps: Mapping[UUID, Sequence[JobStep]], over: Over) -> Options | None:
    """A line for each job of several trials, in the colour of its device model; None for fewer than two."""
    drawn = [job for job in jobs if len(steps.get(job.id, ())) > 1]
    if len(drawn) < 2:
        return None
    models = sorted({job.device_model or "" for job in drawn})
    series = [
        _line(job, steps[job.id], over, models.index(job.device_model or ""), SYMBOLS[place % len(SYMBOLS)])
        for place, job in enumerate(drawn)
    ]
    title = "trial of the job" if over == "trial" else "seconds spent on trials"
    times_ms = [step.time_ms for job in drawn for step in steps[job.id]]
    return chart(x=axis(title, min=0, minInterval=1), y=time_axis(times_ms), series=series)


def _line(job: JobAnswer, steps: Sequence[JobStep], over: Over, model: int, symbol: str) -> Options:
    colour = COLOURS[model % len(COLOURS)]
    name = f"{job.device_model}, {job.sampler or 'default sampler'}, {job.created_at:%Y-%m-%d %H:%M:%S}"
    return {
        "name": name,
        "type": "line",
        "step": "end",
        "symbol": symbol,
        "symbolSize": 6,
        "lineStyle": {"color": colour, "type": KINDS[model // len(COLOURS) % len(KINDS)]},
        "itemStyle": {"color": colour},
        "data": [
            point(
                (step.place if over == "trial" else round(step.spent_s, 2), step.time_ms),
                f"{formatting.kernel_time(step.time_ms)} after {formatting.counted(step.place, 'trial')}\n{name}",
                f"/jobs/{job.id}",
            )
            for step in steps
        ],
    }
