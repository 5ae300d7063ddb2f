"""One trial: the executable that was launched, what was verified and timed, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Protocol

L2 = Literal["cold", "warm"]


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
    """The resources of one compiled kernel: per thread (registers, spills, local) or per block (shared).

    `occupancy` is theoretical, 0 to 1. None where the device has no such notion (CPU).
    """

    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    occupancy: float | None = None


@dataclass(frozen=True)
class DeviceState:
    """Clock and temperature at one moment, where they can be read."""

    clock_mhz: int | None = None
    temperature_c: int | None = None


@dataclass(frozen=True)
class Verification:
    """The comparison with the reference. `bound_ratio` is the worst error over its bound with c = 1."""

    bound_ratio: float  # inf where a NaN or an unwritten element was found
    wrong: int  # components over the bound
    first_wrong: tuple[int, ...] | None = None
    inputs: str = "normal"  # the kind that was computed with, see arrays.KINDS
    got: float | None = None  # the component there; NaN where nothing was written
    expected: float | None = None  # the reference's

    def message(self) -> str:
        """One sentence for the trial's log."""
        where = f", first at {self.first_wrong}" if self.first_wrong is not None else ""
        if self.got is not None and self.expected is not None:
            where += f": got {self.got:.9g}, expected {self.expected:.9g}"
        inputs = "" if self.inputs == "normal" else f" with {self.inputs} inputs"
        worst = f"worst error is {self.bound_ratio:.3g} of its bound"
        return f"{self.wrong} components are out of bounds{inputs}{where}; {worst}"

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong: NaN compares false with everything, so ask for what is right."""
        return self.wrong == 0 and self.bound_ratio < math.inf


class Executable(Protocol):
    """Something that can be launched on the bench's arrays: a compiled configuration, or the library's call."""

    @property
    def resources(self) -> Resources:
        """Registers, shared memory, spills, occupancy."""

    @property
    def compile_ms(self) -> float:
        """Wall time of compiling, 0 from the cache."""


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
    """The record of a trial. It has times only with outcome `measured`, and is verified then."""

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
