"""The report's numbers as cells of Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewright.tuner.report.rows import LadderReport, Moves, StepRow, SweepRow, Time, percent, ratios

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its heading and its cell. Words lie left."""

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
    """The shape as text, such as "4096 x 4096 x 4096"."""
    return " x ".join(str(size) for size in shape.values())


def _of(pick: Callable[[StepRow], float | None]) -> Callable[[StepRow, LadderReport], str]:
    return lambda row, _report: number(pick(row))


def _timed(pick: Callable[[Time], float]) -> Callable[[StepRow, LadderReport], str]:
    return _of(lambda row: None if row.time is None else pick(row.time))


def _moved(pick: Callable[[Moves], float]) -> Callable[[StepRow | SweepRow, LadderReport], str]:
    return lambda row, _report: "" if row.moves is None else number(pick(row.moves))


def _over_first(row: StepRow, report: LadderReport) -> float | None:
    """How many times as fast as the first step on the device in the same dtype and at the same problem."""
    first = next((s for s in report.steps if s.place == "device" and s.time is not None), None)
    if first is None or first.time is None or row.time is None or dict(row.shape) != dict(first.shape):
        return None
    return first.time.median_ms / row.time.median_ms


STEP = Column[StepRow]("step", lambda row, _r: row.name, is_word=True)
RESULTS: Sequence[Column[StepRow]] = (
    STEP,
    Column("type", lambda row, _r: row.dtype, is_word=True),
    Column("size", lambda row, _r: shape_text(row.shape), is_word=True),
    Column("time (ms)", _timed(lambda time: time.median_ms)),
    Column("95 % from", _timed(lambda time: time.low_ms)),
    Column("to", _timed(lambda time: time.high_ms)),
    Column("x first kernel", lambda row, report: number(_over_first(row, report))),
    Column("GFLOP/s", _of(lambda row: row.gflops)),
    Column("% of peak", _of(lambda row: row.percent_of_peak)),
    Column("GB/s", _of(lambda row: row.gb_per_s)),
    Column(
        "% of bandwidth, data sheet",
        lambda row, report: number(percent(_on_device(row), report.bandwidth.datasheet_gb_per_s)),
    ),
    Column(
        "% of bandwidth, measured",
        lambda row, report: number(percent(_on_device(row), report.bandwidth.measured_gb_per_s)),
    ),
    Column("error / bound", _of(lambda row: row.bound_ratio)),
)
MOVES: Sequence[Column[StepRow]] = (
    STEP,
    Column("allocation (ms)", _moved(lambda moves: moves.allocate_ms)),
    Column("host to device (ms)", _moved(lambda moves: moves.to_device_ms)),
    Column("device to host (ms)", _moved(lambda moves: moves.to_host_ms)),
    Column("time with transfers (ms)", _of(lambda row: row.with_transfers_ms)),
)
TRAFFIC: Sequence[Column[StepRow]] = (
    STEP,
    Column("tile", lambda row, _r: "" if row.tile is None else f"{row.tile[0]} x {row.tile[1]}", is_word=True),
    Column("compulsory (GB)", _of(lambda row: row.work.bytes_moved / 1e9)),
    Column("FLOP / compulsory byte", _of(lambda row: row.work.intensity)),
    Column(
        "loads, predicted (GB)",
        _of(lambda row: None if row.predicted_bytes is None else row.predicted_bytes / 1e9),
    ),
    Column("share of untiled, predicted", _of(lambda row: row.predicted_share)),
)
REMARKS: Sequence[Column[StepRow]] = (
    STEP,
    Column("configuration", lambda row, _r: row.configuration, is_word=True),
    Column("chosen", lambda row, _r: row.chosen, is_word=True),
    Column("left out", lambda row, _r: row.left_out, is_word=True),
)
SWEEP: Sequence[Column[SweepRow]] = (
    Column("size", lambda row, _r: shape_text(row.shape) if row.shape else str(row.size)),
    Column("step", lambda row, report: report.titles()[row.key], is_word=True),
    Column("time (ms)", lambda row, _r: number(row.time.median_ms)),
    Column("95 % from", lambda row, _r: number(row.time.low_ms)),
    Column("to", lambda row, _r: number(row.time.high_ms)),
    Column("GFLOP/s", lambda row, _r: number(row.gflops)),
    Column("GB/s", lambda row, _r: number(row.gb_per_s)),
    Column("allocation (ms)", _moved(lambda moves: moves.allocate_ms)),
    Column("host to device (ms)", _moved(lambda moves: moves.to_device_ms)),
    Column("device to host (ms)", _moved(lambda moves: moves.to_host_ms)),
    Column("time with transfers (ms)", lambda row, _r: number(row.with_transfers_ms)),
    Column("GFLOP/s with transfers", lambda row, _r: number(row.gflops_with_transfers)),
    Column("error / bound", lambda row, _r: number(row.bound_ratio)),
)


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], report: LadderReport) -> Table:
    """The table; columns in which no row has anything are left out."""
    cells = [[column.cell(row, report) for row in rows] for column in columns]
    kept = [i for i, column in enumerate(cells) if any(column)]
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


def _on_device(row: StepRow) -> float | None:
    return row.gb_per_s if row.place in {"device", "library"} else None
