"""The report's numbers as cells: the page, the Markdown and the CSV files show the same text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.tuner.report.rows import LadderReport, Moves, StepRow, SweepRow, Time, Traffic, percent, ratios

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its name in CSV files (with the unit), its heading on the page, and its cell. Words lie left."""

    name: str
    heading: str
    cell: Callable[[Row, LadderReport], str]
    is_word: bool = False


@dataclass(frozen=True)
class Table:
    """Headings, whether each column holds words, and rows of cells."""

    headings: tuple[str, ...]
    words: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        rule = "|".join("---" if word else "---:" for word in self.words)
        rows = (" | ".join(cell.replace("|", "/") or " " for cell in row) for row in self.rows)
        return "\n".join([f"| {' | '.join(self.headings)} |", f"|{rule}|", *(f"| {row} |" for row in rows)])


def number(value: float | None) -> str:
    """Four significant digits without an exponent where that stays short; empty where there is none."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    return f"{value:.2e}" if size < -6 else f"{value:.{max(0, 3 - size)}f}"


def shape_text(shape: Mapping[str, int]) -> str:
    """For instance "4096 x 4096 x 4096"."""
    return " x ".join(str(size) for size in shape.values())


def _of(pick: Callable[[StepRow], float | None]) -> Callable[[StepRow, LadderReport], str]:
    return lambda row, _report: number(pick(row))


def _timed(pick: Callable[[Time], float]) -> Callable[[StepRow, LadderReport], str]:
    return _of(lambda row: None if row.time is None else pick(row.time))


def _moved(pick: Callable[[Moves], float]) -> Callable[[StepRow | SweepRow, LadderReport], str]:
    return lambda row, _report: "" if row.moves is None else number(pick(row.moves))


def _naive_share(row: StepRow, report: LadderReport) -> float | None:
    """Bytes asked for, as a part of what the step without tiles asks for at the same problem."""
    first = next((s for s in report.steps if s.key == "naive" and s.traffic is not None), None)
    if first is None or first.traffic is None or row.traffic is None or row.dtype != first.dtype:
        return None
    whole, part = first.traffic.asked_bytes, row.traffic.asked_bytes
    return part / whole if part is not None and whole else None


def _gigabytes(pick: Callable[[Traffic], float | None]) -> Callable[[StepRow, LadderReport], str]:
    def cell(row: StepRow, _report: LadderReport) -> str:
        value = None if row.traffic is None else pick(row.traffic)
        return number(None if value is None else value / 1e9)

    return cell


def _over_first(row: StepRow, report: LadderReport) -> float | None:
    """How many times as fast as the first step on the device in the same dtype and at the same problem."""
    first = next((s for s in report.steps if s.place == "device" and s.time is not None), None)
    if first is None or first.time is None or row.time is None or dict(row.shape) != dict(first.shape):
        return None
    return first.time.median_ms / row.time.median_ms


STEP = Column[StepRow]("step", "step", lambda row, _r: row.name, is_word=True)
RESULTS: Sequence[Column[StepRow]] = (
    STEP,
    Column("dtype", "type", lambda row, _r: row.dtype, is_word=True),
    Column("size", "size", lambda row, _r: shape_text(row.shape), is_word=True),
    Column("time_ms", "time (ms)", _timed(lambda time: time.median_ms)),
    Column("time_low_ms", "95 % from", _timed(lambda time: time.low_ms)),
    Column("time_high_ms", "to", _timed(lambda time: time.high_ms)),
    Column("times_first_kernel", "x first kernel", lambda row, report: number(_over_first(row, report))),
    Column("gflops", "GFLOP/s", _of(lambda row: row.gflops)),
    Column("percent_of_peak_flops", "% of peak", _of(lambda row: row.percent_of_peak)),
    Column("gb_per_s", "GB/s", _of(lambda row: row.gb_per_s)),
    Column(
        "percent_of_datasheet_bandwidth",
        "% of bandwidth, data sheet",
        lambda row, report: number(percent(_on_device(row), report.bandwidth.datasheet_gb_per_s)),
    ),
    Column(
        "percent_of_measured_bandwidth",
        "% of bandwidth, measured",
        lambda row, report: number(percent(_on_device(row), report.bandwidth.measured_gb_per_s)),
    ),
    Column("error_over_bound", "error / bound", _of(lambda row: row.bound_ratio)),
)
MOVES: Sequence[Column[StepRow]] = (
    STEP,
    Column("allocate_ms", "allocation (ms)", _moved(lambda moves: moves.allocate_ms)),
    Column("host_to_device_ms", "host to device (ms)", _moved(lambda moves: moves.to_device_ms)),
    Column("device_to_host_ms", "device to host (ms)", _moved(lambda moves: moves.to_host_ms)),
    Column("with_transfers_ms", "time with transfers (ms)", _of(lambda row: row.with_transfers_ms)),
)
TRAFFIC: Sequence[Column[StepRow]] = (
    STEP,
    Column("tile", "tile", lambda row, _r: "" if row.tile is None else f"{row.tile[0]} x {row.tile[1]}", is_word=True),
    Column("compulsory_gb", "compulsory (GB)", _of(lambda row: row.work.bytes_moved / 1e9)),
    Column("intensity_flop_per_byte", "FLOP / compulsory byte", _of(lambda row: row.work.intensity)),
    Column(
        "predicted_gb",
        "loads, predicted (GB)",
        _of(lambda row: None if row.predicted_bytes is None else row.predicted_bytes / 1e9),
    ),
    Column("asked_gb", "loads, counted (GB)", _gigabytes(lambda traffic: traffic.asked_bytes)),
    Column("predicted_share", "share of untiled, predicted", _of(lambda row: row.predicted_share)),
    Column("asked_share", "of naive, counted", lambda row, report: number(_naive_share(row, report))),
    Column("l2_gb", "read from L2 (GB)", _gigabytes(lambda traffic: traffic.l2_bytes)),
    Column("dram_gb", "memory (GB)", _gigabytes(lambda traffic: traffic.dram_bytes)),
)
REMARKS: Sequence[Column[StepRow]] = (
    STEP,
    Column("configuration", "configuration", lambda row, _r: row.configuration, is_word=True),
    Column("chosen", "chosen", lambda row, _r: row.chosen, is_word=True),
    Column("left_out", "left out", lambda row, _r: row.left_out, is_word=True),
)
SWEEP: Sequence[Column[SweepRow]] = (
    Column("size", "size", lambda row, _r: shape_text(row.shape) if row.shape else str(row.size)),
    Column("step", "step", lambda row, report: report.titles()[row.key], is_word=True),
    Column("time_ms", "time (ms)", lambda row, _r: number(row.time.median_ms)),
    Column("time_low_ms", "95 % from", lambda row, _r: number(row.time.low_ms)),
    Column("time_high_ms", "to", lambda row, _r: number(row.time.high_ms)),
    Column("gflops", "GFLOP/s", lambda row, _r: number(row.gflops)),
    Column("gb_per_s", "GB/s", lambda row, _r: number(row.gb_per_s)),
    Column("allocate_ms", "allocation (ms)", _moved(lambda moves: moves.allocate_ms)),
    Column("host_to_device_ms", "host to device (ms)", _moved(lambda moves: moves.to_device_ms)),
    Column("device_to_host_ms", "device to host (ms)", _moved(lambda moves: moves.to_host_ms)),
    Column("with_transfers_ms", "time with transfers (ms)", lambda row, _r: number(row.with_transfers_ms)),
    Column("gflops_with_transfers", "GFLOP/s with transfers", lambda row, _r: number(row.gflops_with_transfers)),
    Column("error_over_bound", "error / bound", lambda row, _r: number(row.bound_ratio)),
    Column("configuration", "configuration", lambda row, _r: row.configuration, is_word=True),
)


def table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], report: LadderReport, *, drop_empty: bool = True
) -> Table:
    """The table; columns in which no row has anything are left out."""
    cells = [[column.cell(row, report) for row in rows] for column in columns]
    kept = [i for i, column in enumerate(cells) if any(column) or not drop_empty]
    return Table(
        tuple(columns[i].heading for i in kept),
        tuple(columns[i].is_word for i in kept),
        tuple(tuple(cells[i][place] for i in kept) for place in range(len(rows))),
    )


def ratio_table(report: LadderReport) -> Table:
    """Per size, how many times as fast one step is as another, for each pair that the ladder compares."""
    titles = report.titles()
    pairs = [(f"{titles[b]} over {titles[a]}", dict(ratios(report, a, b))) for a, b in report.compared]
    sizes = sorted({size for _, by_size in pairs for size in by_size})
    rows = tuple((str(size), *(number(by_size.get(size)) for _, by_size in pairs)) for size in sizes)
    return Table(("size", *(heading for heading, _ in pairs)), (False,) * (len(pairs) + 1), rows)


def steps_csv(report: LadderReport) -> str:
    """Every number of every step."""
    columns = [*RESULTS, *MOVES[1:], *TRAFFIC[1:], *REMARKS[1:]]
    return _csv(columns, report.steps, report)


def sweep_csv(report: LadderReport) -> str:
    """Every step at every size and every rectangular shape."""
    return _csv(SWEEP, [*report.sweep, *report.rectangles], report)


def _csv(columns: Sequence[Column[Row]], rows: Sequence[Row], report: LadderReport) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    writer.writerows([column.cell(row, report) for column in columns] for row in rows)
    return text.getvalue()


def _on_device(row: StepRow) -> float | None:
    return row.gb_per_s if row.place in {"device", "library"} else None
