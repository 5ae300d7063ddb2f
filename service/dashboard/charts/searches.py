"""Searches for one problem laid over one another: the best so far of each job, over its trials or their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.history import COLOURS, SYMBOLS
from tilewright.service.dashboard.charts.parts import Options, axis, chart, point, time_axis
from tilewright.service.dashboard.charts.study import Over
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.studies.studies import JobStep

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
