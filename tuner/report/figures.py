"""The figures of a report and their data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.tuner.report.charts import Bars, Chart, Point, Series
from tilewright.tuner.report.rows import LadderReport, StepRow, SweepRow, crossing, fastest_sizes, ratios
from tilewright.tuner.report.tables import number

DEVICE = ("device", "library")
_ROOF = 99  # the slot of lines that belong to no step


@dataclass(frozen=True)
class Figure:
    """A picture with its heading and a sentence that says how to read it."""

    title: str
    caption: str
    svg: str


def figures(report: LadderReport) -> list[Figure]:
    """The pictures, in the order of the page; those for which nothing was measured are left out."""
    made = [_bars(report), *(_sweeps(report) if report.sweep else ()), _roofline(report)]
    return [figure for figure in made if figure is not None]


def best_keys(report: LadderReport) -> list[str]:
    """The steps that run on the device, library included."""
    return [step.key for step in report.steps if step.place in DEVICE]


def crossings(report: LadderReport, host: str, *, transfers: bool) -> float | None:
    """The size from which on the device's fastest step beats a step of the host."""
    host_times = [(float(row.size), row.time.median_ms) for row in report.series(host)]
    return crossing(fastest_sizes(report, best_keys(report), transfers=transfers), host_times)


def _slots(report: LadderReport) -> dict[str, int]:
    return {step.key: place for place, step in enumerate(report.steps)}


def _bars(report: LadderReport) -> Figure | None:
    slots = _slots(report)
    bars = [(step.title, *_rate(step, report), slots[step.key]) for step in report.steps if step.time is not None]
    if not bars:
        return None
    unit = "GFLOP/s" if report.unit == "gflops" else "GB/s"
    caption = f"{unit}, more is better; a step's own size is in the table where it is another one."
    return Figure("The steps", caption, Bars(f"{unit} of each step", bars).svg())


def _rate(step: StepRow, report: LadderReport) -> tuple[float, str]:
    rate = (step.gflops if report.unit == "gflops" else step.gb_per_s) or 0.0
    return rate, f"{number(rate)}  ({number(step.time.median_ms if step.time else None)} ms)"


def _sweeps(report: LadderReport) -> Iterator[Figure]:
    size = f"size: {' = '.join(report.swept)}"
    by_work = report.unit == "gflops"
    rate: Callable[[SweepRow], float] = (lambda row: row.gflops) if by_work else (lambda row: row.gb_per_s)
    unit = "GFLOP/s" if by_work else "GB/s"
    chart = Chart("Time by size", size, "ms, less is better", _series(report, lambda row: row.time.median_ms))
    yield Figure("Time by size", "One launch or call, arrays already in place.", chart.svg())
    moved = [one for one in _series(report, lambda row: row.with_transfers_ms) if one.points]
    if any(row.moves for row in report.sweep):
        marks = _marked(report)
        chart = Chart("Time with transfers by size", size, "ms, less is better", moved, marked_x=marks)
        caption = "Inputs to the device, one launch, the output back; the host's steps have nothing to move."
        yield Figure("Time by size, transfers in and out counted", caption, chart.svg())
    chart = Chart(f"{unit} by size", size, f"{unit}, more is better", _series(report, rate))
    yield Figure(f"{unit} by size", "Transfers left out.", chart.svg())
    if by_work and any(row.moves for row in report.sweep):
        name = "GFLOP/s by size, transfers in and out counted"
        chart = Chart(name, size, "GFLOP/s, more is better", _series(report, lambda row: row.gflops_with_transfers))
        yield Figure(name, "What is left of the work a second when arrays come from the host and go back.", chart.svg())
    compared = _ratio_series(report)
    if compared:
        chart = Chart("Ratios by size", size, "times as fast", compared, y_by=2)
        yield Figure("Step over step, by size", "Above 1 the one named first is faster.", chart.svg())


def _series(report: LadderReport, value: Callable[[SweepRow], float]) -> list[Series]:
    slots, titles = _slots(report), report.titles()
    found = []
    for key in report.swept_keys():
        title = titles[key]
        points = [Point(r.size, value(r), f"{title}, {r.size}: {number(value(r))}") for r in report.series(key)]
        found.append(Series(title, slots[key], points))
    return found


def _ratio_series(report: LadderReport) -> list[Series]:
    titles, slots = report.titles(), _slots(report)
    found = []
    for first, second in report.compared:
        name = f"{titles[second]} over {titles[first]}"
        by_size = ratios(report, first, second)
        points = [Point(size, ratio, f"{name}, {size}: {number(ratio)}") for size, ratio in by_size]
        if points:
            found.append(Series(name, slots[second], points))
    return found


def _marked(report: LadderReport) -> list[tuple[float, str]]:
    titles = report.titles()
    found = []
    for key in ("cpu_loop", "cpu_blas"):
        at = crossings(report, key, transfers=True)
        if at is not None and at > min(row.size for row in report.sweep):
            found.append((at, f"the device beats {titles[key]} from {at:.0f} on"))
    return found


def _roofline(report: LadderReport) -> Figure | None:
    placed = [s for s in report.steps if s.time is not None and s.place in DEVICE]
    roof = report.bandwidth.datasheet_gb_per_s or report.bandwidth.measured_gb_per_s
    if not placed or roof is None or not all(s.work.flops for s in placed):
        return None
    slots = _slots(report)
    points = [
        Series(s.title, slots[s.key], [Point(_intensity(s), s.gflops or 0.0, f"{s.title}: {number(s.gflops)} GFLOP/s")])
        for s in placed
    ]
    ends = [p.points[0].x for p in points]
    # Tensor cores have a peak of their own; every other step has its dtype's.
    peaks = {s.peak_gflops: s.title if s.key == "tensor" else s.dtype for s in placed if s.peak_gflops}
    low = min([*ends, *(peak / roof for peak in peaks)]) / 4
    high = max([*ends, *(peak / roof for peak in peaks)]) * 12
    lines = [
        Series(
            f"{name}: {number(peak / 1e3)} TFLOP/s",
            _ROOF,
            [Point(low, low * roof), Point(peak / roof, peak), Point(high, peak)],
            has_marks=False,
        )
        for peak, name in peaks.items()
    ] or [Series("memory", _ROOF, [Point(low, low * roof), Point(high, high * roof)], has_marks=False)]
    marks = [Series(p.name, p.slot, p.points, has_line=False) for p in points]
    chart = Chart("Roofline", "FLOP for each byte moved", "GFLOP/s, more is better", [*lines, *marks], x_by=10)
    counted = any(s.traffic is not None and s.traffic.dram_bytes for s in placed)
    counted_as = "bytes from and to memory as counted" if counted else "compulsory bytes, since none were counted"
    by = "the data sheet's" if report.bandwidth.datasheet_gb_per_s else "the measured"
    caption = f"Arithmetic intensity by {counted_as}; the slope is {by} bandwidth, {number(roof)} GB/s."
    return Figure("Arithmetic intensity and roofline", caption, chart.svg())


def _intensity(step: StepRow) -> float:
    counted = step.traffic.dram_bytes if step.traffic is not None else None
    return step.work.flops / (counted or step.work.bytes_moved)
