"""One trial: the executable that was launched, what was verified and timed, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

L2 = Literal["cold", "warm"]


class KindsPart(NamedTuple):
    """Some of a bench's kinds of inputs: the first one and every `of`-th of the others, from number `number` on."""

    number: int
    of: int

    def of_all(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """The part of all kinds that these are."""
        return (*kinds[:1], *kinds[1:][self.number :: self.of])


ALL_KINDS = KindsPart(0, 1)


class Outcome(StrEnum):
    """How a trial ended; only `measured` has a time."""

    MEASURED = "measured"
    CONSTRAINT_VIOLATED = "constraint_violated"
    COMPILE_FAILED = "compile_failed"
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    DEVICE_LOST = "device_lost"
    INTERRUPTED = "interrupted"  # by the surroundings, which says nothing about the configuration


@dataclass(frozen=True)
class Resources:
    """The resources of one compiled kernel: per thread (registers, spills, local) or per block (shared).

    `occupancy` is theoretical, 0 to 1. None where the device has no such notion (CPU). `pack_ms`: the time of packing
    an operand once, which is no part of a launch's; None where nothing is packed ahead.
    """

    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    occupancy: float | None = None
    pack_ms: float | None = None


@dataclass(frozen=True)
class DeviceState:
    """Clock and temperature at one moment, where they can be read."""

    clock_mhz: int | None = None
    temperature_c: int | None = None


@dataclass(frozen=True)
class Verification:
    """The comparison with the reference. `bound_ratio` is the worst error over its bound with c = 1.

    Results that the kernel's own check has looked at have no such ratio: None.
    """

    bound_ratio: float | None  # inf where a NaN, an unwritten element or a wrong integer was found
    wrong: int  # components over the bound
    first_wrong: tuple[int, ...] | None = None
    inputs: str = "normal"  # the kind that was computed with, see arrays.KINDS
    got: int | float | None = None  # the component there; NaN where nothing was written
    expected: int | float | None = None  # the reference's
    tensor: str = ""  # where the kernel has several outputs: the wrong one
    reason: str = ""  # what the kernel's own check says is wrong
    verified: str = ""  # how, where that is not against a reference
    launch_ms: float | None = field(default=None, compare=False)  # of the launch that was verified, about, if timed

    def message(self) -> str:
        """The sentence for the trial's log."""
        inputs = "" if self.inputs == "normal" else f" with {self.inputs} inputs"
        if self.reason:
            return f"the kernel's own check{inputs}: {self.reason}"
        where = f", first at {self.first_wrong}" if self.first_wrong is not None else ""
        if self.got is not None and self.expected is not None:
            where += f": got {_number(self.got)}, expected {_number(self.expected)}"
        tensor = f"{self.tensor}: " if self.tensor else ""
        verified = f" (verified {self.verified})" if self.verified else ""
        if isinstance(self.got, int):
            return f"{tensor}{self.wrong} components are wrong{inputs}{where}{verified}"
        worst = f"worst error is {self.bound_ratio:.3g} of its bound"
        return f"{tensor}{self.wrong} components are out of bounds{inputs}{where}; {worst}{verified}"

    def remark(self) -> str:
        """The log line of a right result; empty where it was compared with a reference."""
        return f"Verified {self.verified}." if self.verified else ""

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong. Ask for what is right: NaN compares false with everything."""
        return self.wrong == 0 and (self.bound_ratio is None or self.bound_ratio < math.inf)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


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
