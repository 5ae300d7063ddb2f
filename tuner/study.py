"""What a study is made of: its budget, its trials, what is told while it runs and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tilewright.kernels.space import Configuration
from tilewright.tuner.finals import DroppedFinalist, Finalist, LibraryTime
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.rounds import Steadiness

StoppedBy = Literal["trials", "seconds", "target", "exhausted", "cancelled"]


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first. At least one is set; all are positive. The finals come on top.

    `target_ms`: stop as soon as a trial's ranking time is at or below it.
    """

    trials: int | None = None
    seconds: float | None = None
    target_ms: float | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.trials, self.seconds, self.target_ms) if limit is not None]
        if not limits or not all(limit > 0 for limit in limits):
            raise ValueError(f"a budget has a limit, and its limits are above zero: {self}")


@dataclass(frozen=True)
class Trial:
    """One evaluated configuration of a study; numbers are dense from 0 within a study."""

    number: int
    configuration: Configuration
    evaluation: Evaluation
    started_s: float = 0.0  # seconds since the study's clock started, wall
    wall_s: float = 0.0


@dataclass(frozen=True)
class TuneResult:
    """The settled winner (None where nothing was measured), all finalists best first, the library beside.

    `library_failure`: what kept the library's time or its error from being known; None where there is no library.
    `default_ms` and `slowest_ms` are medians of the default configuration (None: it failed; in the finals where it ran
    there) and of the slowest trial.
    """

    best: Finalist | None
    finalists: tuple[Finalist, ...]
    library: LibraryTime | None
    default_ms: float | None
    slowest_ms: float | None
    stopped_by: StoppedBy
    dropped: tuple[DroppedFinalist, ...] = ()  # verified in their trials, failed in the finals: retract them
    steadiness: Steadiness | None = None  # of the device during the finals
    library_failure: str | None = None


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
