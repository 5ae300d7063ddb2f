"""What became of one trial."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Outcome(StrEnum):
    """How a trial ended; only `measured` has a time."""

    MEASURED = "measured"
    CONSTRAINT_VIOLATED = "constraint_violated"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    DEVICE_LOST = "device_lost"


@dataclass(frozen=True)
class Resources:
    """What the compiler gave one kernel: per thread (registers, spills, local) or per block (shared).

    `occupancy` is theoretical, 0 to 1. None where the device has no such notion (CPU).
    """

    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    occupancy: float | None = None


@dataclass(frozen=True)
class Timing:
    """Times of one launch: median and spread (interquartile range) of `samples_ms`, in milliseconds."""

    time_ms: float
    spread_ms: float
    samples_ms: tuple[float, ...]
    l2: str  # "cold" or "warm"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_ms) and self.time_ms > 0) or self.l2 not in {"cold", "warm"}:
            raise ValueError(f"not a time: {self}")


@dataclass(frozen=True)
class Evaluation:
    """Everything a trial is recorded with. Times only with outcome `measured`, and then verified."""

    outcome: Outcome
    warm: Timing | None = None
    cold: Timing | None = None
    ranking_l2: str = "warm"
    resources: Resources = field(default_factory=Resources)
    bound_ratio: float | None = None  # worst component error over its bound with c = 1
    compile_ms: float | None = None
    clock_mhz: int | None = None
    temperature_c: int | None = None
    log: str = ""

    def __post_init__(self) -> None:
        measured = self.outcome is Outcome.MEASURED
        if measured != (self.ranking is not None):
            raise ValueError(f"{self.outcome} {'without' if measured else 'with'} a time")

    @property
    def ranking(self) -> Timing | None:
        """The timing that ranks this trial."""
        return self.cold if self.ranking_l2 == "cold" else self.warm

    @property
    def time_ms(self) -> float | None:
        """The ranking median, in milliseconds."""
        return self.ranking.time_ms if self.ranking else None

    def with_log(self, log: str) -> Evaluation:
        """The same with this log."""
        return replace(self, log=log)
