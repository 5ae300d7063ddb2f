"""The roofline of a device model as ECharts options (Williams, Waterman, Patterson, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.parts import ON_ANYTHING, Options, axis, chart, point
from tilewright.service.operations.best.results import ResultAnswer
from tilewright.tuner.roofline import peak_gflops

KERNEL_SYMBOLS = ("circle", "triangle", "rect", "diamond", "roundRect")
KERNEL_COLOURS = ("--series-1", "--series-3", "--series-4", "--series-2")

LABELS_APART = 1.9
"""Times that a peak must be above another, so that the labels of both have room above their lines."""


def roofline(results: Sequence[ResultAnswer], details: Mapping[str, Any]) -> Options | None:
    """Every best as a point under the roofs, with an arrow from its kernel's default; None without results or peaks."""
    shown = [result for result in results if result.gflops and result.gb_per_s]
    peaks: dict[str, float] = details.get("datasheet_gflops") or {}
    slopes = {
        "data sheet": details.get("datasheet_gb_per_s"),
        "measured": details.get("measured_gb_per_s"),
    }
    if not shown or not (peaks or any(slopes.values())):
        return None
    peaks = _with_used(peaks, shown)
    points = [(_intensity(result), _gflops(result)) for result in shown]
    ridge = [peak / slope for peak in peaks.values() for slope in slopes.values() if slope]
    across = _powers([*(x for x, _ in points), *ridge])
    up = _powers([*(y for _, y in points), *(_default(r) or _gflops(r) for r in shown), *peaks.values()])
    roofs, drawn = _roofs(peaks, slopes, across, up), [*_arrows(shown), *_points(shown, details)]
    return chart(
        x=axis("arithmetic intensity, FLOP per byte moved", kind="log", logBase=10, min=across[0], max=across[1]),
        y=axis("GFLOP/s", kind="log", direction="higher", logBase=10, min=up[0], max=up[1]),
        series=[*roofs, *drawn],
        legend=[one["name"] for one in drawn],  # the roofs have labels
    )


def _gflops(result: ResultAnswer) -> float:
    """GFLOP/s of a result that is shown: one of a kernel that counts its work."""
    return result.gflops or 0.0


def _intensity(result: ResultAnswer) -> float:
    return _gflops(result) / (result.gb_per_s or 1.0)


def _with_used(peaks: Mapping[str, float], results: Sequence[ResultAnswer]) -> dict[str, float]:
    """The data sheet's peaks by name, with those that these results' shares of the roof refer to, if others."""
    drawn = dict(peaks)
    of_each = {(result.problem.dtype, result.problem.options.get("accuracy")): result for result in results}
    for result in of_each.values():
        name, peak = _roof(result, peaks)
        if peak is not None and peak not in drawn.values():
            drawn[name] = peak
    return drawn


def _roof(result: ResultAnswer, peaks: Mapping[str, float]) -> tuple[str, float | None]:
    """The name and height of the peak over a result, for the arithmetic that its problem admits."""
    accuracy = result.problem.options.get("accuracy")
    admitted = None if accuracy is None else str(accuracy)
    peak = peak_gflops(peaks, result.problem.dtype, admitted)
    name = next((name for name, of in peaks.items() if of == peak), f"{result.problem.dtype}, accuracy {admitted}")
    return name, peak


def _default(result: ResultAnswer) -> float | None:
    """GFLOP/s of the default configuration; None where it was not measured."""
    return _gflops(result) / result.gain_over_default if result.gain_over_default else None


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
    limit = slopes["data sheet"] or slopes["measured"]  # a share of the roof is of the data sheet's
    for dtype, peak in peaks.items():
        start = peak / limit if limit else across[0]
        says = f"peak {dtype}: {formatting.number(peak)} GFLOP/s, data sheet"
        is_below = any(peak < other < LABELS_APART * peak for other in peaks.values())  # its label has the place above
        ends = [(start, peak), (across[1], peak)]
        lines.append(_line(f"peak {dtype}", ends, says, "solid", label="{a}", is_below=is_below))
    for source, slope in slopes.items():
        if slope:
            low = max(across[0], up[0] / slope)
            says = f"memory: {formatting.number(slope)} GB/s, {source}"
            kind = "solid" if source == "data sheet" else "dashed"
            label = "memory" if slope == limit else None  # two would lie on each other
            lines.append(_line(f"memory, {source}", [(low, low * slope), (top / slope, top)], says, kind, label=label))
    return lines


def _line(
    name: str,
    ends: Sequence[tuple[float, float]],
    says: str,
    kind: str,
    *,
    label: str | None,
    is_below: bool = False,
) -> Options:
    """A roof, labelled at its end, above or below it; in front of the points, which would hide the label."""
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
            "offset": [-10, 10 if is_below else -10],
        },
        "data": [point(end, says) for end in ends],
    }


def _arrows(results: Sequence[ResultAnswer]) -> list[Options]:
    """Arrows from the default configurations to the best ones: straight up, since the work is the same."""
    arrows = []
    for result in results:
        default, x = _default(result), _intensity(result)
        if default and default < _gflops(result):
            gain = f"default {formatting.number(default)} to {formatting.number(_gflops(result))} GFLOP/s"
            says = f"{_problem(result)}\n{gain}"
            arrows.append({"coords": [[x, default], [x, _gflops(result)]], "name": says})
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


def _under(result: ResultAnswer, details: Mapping[str, Any]) -> str:
    """The roof above the result, at its intensity."""
    name, peak = _roof(result, details.get("datasheet_gflops") or {})
    slope = details.get("datasheet_gb_per_s")
    if peak is None or slope is None:
        return ""
    return " (memory)" if slope * _intensity(result) < peak else f" (peak {name})"


def _points(results: Sequence[ResultAnswer], details: Mapping[str, Any]) -> list[Options]:
    """A series of points for each kernel, of its own shape and colour."""
    by_kernel: dict[str, list[Options]] = {}
    for result in results:
        rate = f"{formatting.number(_gflops(result))} GFLOP/s"
        says = (
            f"{_problem(result)}\n{rate}, {formatting.percent(result.roof_ratio)} of the roof{_under(result, details)}"
        )
        spot = point((_intensity(result), _gflops(result)), says, f"/studies/{result.study_id}")
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
    options = formatting.unusual_options(problem)
    return " ".join(part for part in (problem.kernel, formatting.shape_text(problem), options) if part)
