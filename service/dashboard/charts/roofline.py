"""The roofline of a device model as ECharts options (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.service.dashboard import words
from tilewright.service.dashboard.charts.parts import ON_ANYTHING, Options, axis, chart, point
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.service.operations.parse import format_shape

KERNEL_SYMBOLS = ("circle", "triangle", "rect", "diamond", "roundRect")
KERNEL_COLOURS = ("--series-1", "--series-3", "--series-4", "--series-2")


def roofline(results: Sequence[ResultAnswer], details: Mapping[str, Any]) -> Options | None:
    """Every best as a point under the roofs, with an arrow from its kernel's default; None without results or peaks."""
    shown = [result for result in results if result.gflops > 0 and result.gb_per_s > 0]
    peaks: dict[str, float] = details.get("datasheet_gflops") or {}
    slopes = {
        "data sheet": details.get("datasheet_gb_per_s"),
        "measured": details.get("measured_gb_per_s"),
    }
    if not shown or not (peaks or any(slopes.values())):
        return None
    points = [(_intensity(result), result.gflops) for result in shown]
    ridge = [peak / slope for peak in peaks.values() for slope in slopes.values() if slope]
    across = _powers([*(x for x, _ in points), *ridge])
    up = _powers([*(y for _, y in points), *(_default(r) or r.gflops for r in shown), *peaks.values()])
    roofs, drawn = _roofs(peaks, slopes, across, up), [*_arrows(shown), *_points(shown)]
    return chart(
        x=axis("arithmetic intensity, FLOP per byte moved", kind="log", logBase=10, min=across[0], max=across[1]),
        y=axis("GFLOP/s", kind="log", direction="higher", logBase=10, min=up[0], max=up[1]),
        series=[*roofs, *drawn],
        legend=[one["name"] for one in drawn],  # the roofs have labels
    )


def _intensity(result: ResultAnswer) -> float:
    return result.gflops / result.gb_per_s


def _default(result: ResultAnswer) -> float | None:
    """GFLOP/s of the default configuration; None where it was not measured."""
    return result.gflops / result.gain_over_default if result.gain_over_default else None


def _powers(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around the values."""
    return 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)) + 1e-9)


def _roofs(
    peaks: Mapping[str, float],
    slopes: Mapping[str, float | None],
    across: tuple[float, float],
    up: tuple[float, float],
) -> list[Options]:
    """Horizontal lines of the peaks, and the slope of the memory up to the highest of them."""
    lines = []
    top = max(peaks.values(), default=up[1])
    widest = max((slope for slope in slopes.values() if slope), default=None)
    for dtype, peak in peaks.items():
        start = peak / widest if widest else across[0]
        says = f"peak {dtype}: {words.number(peak)} GFLOP/s, data sheet"
        lines.append(_line(f"peak {dtype}", [(start, peak), (across[1], peak)], says, "solid", label="{a}"))
    for source, slope in slopes.items():
        if slope:
            low = max(across[0], up[0] / slope)
            says = f"memory: {words.number(slope)} GB/s, {source}"
            kind = "solid" if source == "data sheet" else "dashed"
            label = "memory" if slope == widest else None  # two would lie on each other
            lines.append(_line(f"memory, {source}", [(low, low * slope), (top / slope, top)], says, kind, label=label))
    return lines


def _line(name: str, ends: Sequence[tuple[float, float]], says: str, kind: str, *, label: str | None) -> Options:
    """A roof, labelled at its end; above the points, which would hide the label."""
    return {
        "name": name,
        "type": "line",
        "z": 3,
        "symbol": "none",
        "lineStyle": {"color": "--text", "width": 1.5, "type": kind},
        "itemStyle": {"color": "--text"},
        "endLabel": {
            "show": label is not None,
            "formatter": label,
            **ON_ANYTHING,
            "align": "right",
            "offset": [-10, -10],
        },
        "data": [point(end, says) for end in ends],
    }


def _arrows(results: Sequence[ResultAnswer]) -> list[Options]:
    """From where the default configuration lies to the best: straight up, since the work is the same."""
    arrows = []
    for result in results:
        default, x = _default(result), _intensity(result)
        if default and default < result.gflops:
            says = f"{_problem(result)}\ndefault {words.number(default)} to {words.number(result.gflops)} GFLOP/s"
            arrows.append({"coords": [[x, default], [x, result.gflops]], "name": says})
    return [
        {
            "name": "from the default",
            "type": "lines",
            "coordinateSystem": "cartesian2d",
            "symbol": ["none", "arrow"],
            "symbolSize": 8,
            "lineStyle": {"color": "--quiet", "width": 1.5, "opacity": 0.9, "curveness": 0},
            "itemStyle": {"color": "--quiet"},
            "data": arrows,
        }
    ]


def _points(results: Sequence[ResultAnswer]) -> list[Options]:
    """A series of points for each kernel, of its own shape and colour."""
    by_kernel: dict[str, list[Options]] = {}
    for result in results:
        says = (
            f"{_problem(result)}\n{words.number(result.gflops)} GFLOP/s, {words.percent(result.roof_ratio)} of the roof"
        )
        spot = point((_intensity(result), result.gflops), says, f"/studies/{result.study_id}")
        by_kernel.setdefault(result.problem.kernel, []).append(spot)
    return [
        {
            "name": kernel,
            "type": "scatter",
            "symbol": KERNEL_SYMBOLS[place % len(KERNEL_SYMBOLS)],
            "symbolSize": 10,
            "itemStyle": {"color": KERNEL_COLOURS[place % len(KERNEL_COLOURS)]},
            "data": spots,
        }
        for place, (kernel, spots) in enumerate(sorted(by_kernel.items()))
    ]


def _problem(result: ResultAnswer) -> str:
    problem = result.problem
    options = words.unusual_options(problem)
    return " ".join(part for part in (problem.kernel, format_shape(words.ordered_shape(problem)), options) if part)
