"""tune(): search one problem's space on one device within a budget, and settle the winner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tilewright.kernels.space import Configuration
from tilewright.tuner.outcome import Evaluation


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first. At least one is set; all are positive.

    `target_ms`: stop as soon as a trial's ranking time is at or below it.
    """

    trials: int | None = None
    seconds: float | None = None
    target_ms: float | None = None


@dataclass(frozen=True)
class Trial:
    """One evaluated configuration of a study; numbers are dense from 0 within a study."""

    number: int
    configuration: Configuration
    evaluation: Evaluation
    started_s: float = 0.0     # seconds since the study's clock started, wall
    wall_s: float = 0.0


@dataclass(frozen=True)
class Finalist:
    """A configuration of the last, interleaved round. `ties` where its interval overlaps the winner's."""

    configuration: Configuration
    time_ms: float
    ci_ms: tuple[float, float]
    samples_ms: tuple[float, ...]
    ties: bool


@dataclass(frozen=True)
class LibraryTime:
    """The library's time in the same interleaved rounds. `faster`: by more than both intervals."""

    name: str
    time_ms: float
    ci_ms: tuple[float, float]
    faster: bool


@dataclass(frozen=True)
class TuneResult:
    """The settled winner (None where nothing was measured), all finalists best first, the library beside.

    `default_ms` and `slowest_ms` are medians of the default configuration (None: it failed) and of the slowest trial.
    """

    best: Finalist | None
    finalists: tuple[Finalist, ...]
    library: LibraryTime | None
    default_ms: float | None
    slowest_ms: float | None
    stopped_by: str            # "trials", "seconds", "target", "exhausted" or "cancelled"


@dataclass(frozen=True)
class Progress:
    """Handed to `on_trial` after each trial."""

    trial: Trial
    best: Trial | None
    done: int
    budget: Budget


@dataclass
class StudyState:
    """What a resumed study starts from."""

    trials: list[Trial] = field(default_factory=list)


OnTrial = Callable[[Progress], None]
ShouldStop = Callable[[], bool]
Trials = Iterable[Trial]
