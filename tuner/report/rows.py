"""The rows of a report and every number derived from them. Plain data, as the file of JSON has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.tuner import roofline


@dataclass(frozen=True)
class Time:
    """Median of `rounds` rounds in ms, and the 95 % interval of that median."""

    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int


@dataclass(frozen=True)
class Moves:
    """Wall ms of getting a problem's arrays onto the device and back: pageable host memory, as NumPy allocates it."""

    allocate_ms: float
    to_device_ms: float
    to_host_ms: float

    @property
    def transfers_ms(self) -> float:
        """Time of the transfers in both directions, in ms."""
        return self.to_device_ms + self.to_host_ms


@dataclass(frozen=True)
class Work:
    """Work of a problem: operations, compulsory bytes (each input read once, each output written once).

    `flops` is 0 where nobody has counted them.
    """

    flops: int
    bytes_moved: int

    @property
    def intensity(self) -> float | None:
        """Operations for each compulsory byte; None where they are not counted."""
        return self.flops / self.bytes_moved if self.flops else None

    @property
    def amount(self) -> int:
        """Operations, or bytes where those are not counted."""
        return self.flops or self.bytes_moved


@dataclass(frozen=True)
class StepRow:
    """One rung of the ladder at one problem. Without a time, `left_out` says why.

    `configuration` and `chosen` (how it was found) are of device steps. `tile`: rows and columns of the output that
    share what is fetched. `bound_ratio`: worst error against the float64 reference over its bound with c = 1.
    `is_short`: so few configurations were tried that it stands for no search. `than`: see `ladders.Step`.
    """

    key: str
    title: str
    place: str
    dtype: str
    shape: Mapping[str, int]
    work: Work
    reason: str
    time: Time | None = None
    left_out: str = ""
    configuration: str = ""
    chosen: str = ""
    bound_ratio: float | None = None
    peak_gflops: float | None = None
    tile: tuple[int, int] | None = None
    predicted_bytes: float | None = None
    moves: Moves | None = None
    is_short: bool = False
    than: str = ""

    @property
    def name(self) -> str:
        """The title, and whether the step was searched too little to stand for it."""
        return f"{self.title} (searched too little)" if self.is_short else self.title

    @property
    def gflops(self) -> float | None:
        """GFLOP/s of the step."""
        if self.time is None or not self.work.flops:
            return None
        return roofline.gflops(self.work.flops, self.time.median_ms)

    @property
    def gb_per_s(self) -> float | None:
        """Compulsory bytes a second: more was moved where numbers were fetched more than once."""
        return None if self.time is None else roofline.gb_per_s(self.work.bytes_moved, self.time.median_ms)

    @property
    def percent_of_peak(self) -> float | None:
        """Percent of what the units that it uses can do by the data sheet."""
        return percent(self.gflops, self.peak_gflops)

    @property
    def with_transfers_ms(self) -> float | None:
        """Wall time with transfers: inputs to the device, one launch, the output back; on the host nothing moves."""
        if self.time is None or (self.place in {"device", "library"} and self.moves is None):
            return None
        return self.time.median_ms + (self.moves.transfers_ms if self.moves else 0.0)

    @property
    def predicted_share(self) -> float | None:
        """The predicted share of global loads of a kernel without tiles: 1/TILE_WIDTH for square tiles."""
        return None if self.tile is None else (1 / self.tile[0] + 1 / self.tile[1]) / 2


@dataclass(frozen=True)
class SweepRow:
    """One step at one size of the sweep, or of one `shape`; on the device with what its transfers took."""

    size: int
    key: str
    work: Work
    time: Time
    bound_ratio: float | None
    configuration: str = ""
    moves: Moves | None = None
    shape: Mapping[str, int] | None = None

    @property
    def gflops(self) -> float:
        """GFLOP/s without transfers."""
        return roofline.gflops(self.work.flops, self.time.median_ms)

    @property
    def gb_per_s(self) -> float:
        """Compulsory bytes a second, transfers left out."""
        return roofline.gb_per_s(self.work.bytes_moved, self.time.median_ms)

    @property
    def with_transfers_ms(self) -> float:
        """Wall time of the inputs to the device, one launch, and the output back, in ms."""
        return self.time.median_ms + (self.moves.transfers_ms if self.moves else 0.0)

    @property
    def gflops_with_transfers(self) -> float:
        """GFLOP/s with transfers."""
        return roofline.gflops(self.work.flops, self.with_transfers_ms)


@dataclass(frozen=True)
class Bandwidth:
    """GB/s of the device's memory: by its data sheet, and the most that was measured here; `how` says by what."""

    datasheet_gb_per_s: float | None
    measured_gb_per_s: float | None
    how: str


@dataclass(frozen=True)
class LadderReport:
    """A whole report. `facts`: names and values of device, environment, host, date and command."""

    kernel: str
    formula: str
    kind: str  # "cuda" or "cpu"
    device: str
    l2: str
    unit: str
    swept: tuple[str, ...]
    facts: Mapping[str, str]
    bandwidth: Bandwidth
    peaks: Mapping[str, float]
    steps: tuple[StepRow, ...]
    sweep: tuple[SweepRow, ...]
    compared: tuple[tuple[str, str], ...] = ()  # pairs of steps, the first of which the second is compared with
    notes: tuple[str, ...] = field(default=())
    rectangles: tuple[SweepRow, ...] = ()

    def titles(self) -> dict[str, str]:
        """Titles of the steps by key."""
        return {step.key: step.title for step in self.steps}

    def series(self, key: str) -> list[SweepRow]:
        """A step's rows of the sweep, by size."""
        return sorted((row for row in self.sweep if row.key == key), key=lambda row: row.size)

    def as_json(self) -> dict[str, Any]:
        """Plain data, for the file of JSON."""
        return asdict(self)


def percent(value: float | None, whole: float | None) -> float | None:
    """The part in percent of the whole, which may exceed 100; None where either is unknown."""
    return None if value is None or not whole else 100 * value / whole


def ratios(report: LadderReport, over: str, under: str) -> list[tuple[int, float]]:
    """Per size, the time of `over` divided by that of `under`: how much faster `under` is."""
    below = {row.size: row.time.median_ms for row in report.series(under)}
    return [(r.size, r.time.median_ms / below[r.size]) for r in report.series(over) if r.size in below]


def crossing(
    slow_at_first: Iterable[tuple[float, float]], fast_at_first: Iterable[tuple[float, float]]
) -> float | None:
    """The size from which on the first of two lists of (size, time) is faster; None where it does not stay so.

    Between two sizes the times are taken to follow powers of the size, straight lines on logarithmic axes.
    """
    other = dict(fast_at_first)
    logs = sorted((size, math.log(time / other[size])) for size, time in slow_at_first if size in other)
    if not logs or logs[-1][1] >= 0:
        return None
    last = max((place for place, (_, log) in enumerate(logs) if log >= 0), default=None)
    if last is None:
        return logs[0][0]
    (size, log), (next_size, next_log) = logs[last], logs[last + 1]
    return float(size * (next_size / size) ** (log / (log - next_log)))


def fastest_sizes(report: LadderReport, keys: Sequence[str], *, transfers: bool) -> list[tuple[float, float]]:
    """Per size, the least time of these steps, with or without transfers."""
    best: dict[float, float] = {}
    for row in report.sweep:
        if row.key in keys:
            time_ms = row.with_transfers_ms if transfers else row.time.median_ms
            best[row.size] = min(time_ms, best.get(row.size, math.inf))
    return sorted(best.items())


def crossings(report: LadderReport, host: str, *, transfers: bool) -> float | None:
    """The size from which on the device's fastest step, the library's included, beats a step of the host."""
    host_times = [(float(row.size), row.time.median_ms) for row in report.series(host)]
    on_device = [step.key for step in report.steps if step.place in {"device", "library"}]
    return crossing(fastest_sizes(report, on_device, transfers=transfers), host_times)
