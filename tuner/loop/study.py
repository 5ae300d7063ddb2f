"""The parts of a study: its budget, prior knowledge, trials and result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop.ahead import Claim
from tilewright.tuner.loop.finals import DroppedFinalist, Finalist, LibraryTime
from tilewright.tuner.loop.rounds import Steadiness
from tilewright.tuner.outcome import Evaluation
from tilewright.tuner.search.searcher import Prior

StoppedBy = Literal["trials", "seconds", "target", "exhausted", "cancelled"]


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first. At least one limit is set; all are positive. The finals come on top.

    `target_ms`: stop as soon as a trial's ranking time is at or below it. `spent_trials` and `spent_s` are the part of
    the limits that an earlier search of the same job has used.
    """

    trials: int | None = None
    seconds: float | None = None
    target_ms: float | None = None
    spent_trials: int = 0
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.trials, self.seconds, self.target_ms) if limit is not None]
        if not limits or not all(limit > 0 for limit in limits):
            raise ValueError(f"a budget needs a limit, and each limit must be above zero: {self}")


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
    """The state of a study after a trial, for `on_trial`."""

    trial: Trial
    best: Trial | None
    done: int
    budget: Budget


@dataclass(frozen=True)
class Knowledge:
    """Prior knowledge of a search.

    `trials` of the same study are never evaluated again; new numbers follow theirs. `barred` configurations cannot
    become finalists; they count as tried, and their times for nothing: not for the target, not in the race, not in the
    search. `priors` are records made elsewhere. `starts` are tried right after the default, the first of them at least:
    what was best for other shapes. `asked`, by the caller, come before them, and all of them are tried.
    """

    trials: Sequence[Trial] = ()
    barred: frozenset[Configuration] = frozenset()
    priors: Sequence[Prior] = ()
    starts: Sequence[Configuration] = ()
    asked: Sequence[Configuration] = ()


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a search.

    `on_trial` gets every trial as it ends. `should_stop` is asked before each trial and each final round. `others`
    returns the trials that devices of the same model have added to the study since the last call; it is called before
    every proposal, and what it returns counts for nobody's budget. `claim` says whether a proposal is this search's to
    try; another search may have it under way. `too_fast` says why no device can take so few milliseconds, or None.
    """

    on_trial: Callable[[Progress], None] = lambda _progress: None
    should_stop: Callable[[], bool] = lambda: False
    others: Callable[[], Iterable[Trial]] = lambda: ()
    claim: Claim = lambda _configuration: True
    too_fast: Callable[[float], str | None] = lambda _time_ms: None


NOTHING_KNOWN = Knowledge()
NO_HOOKS = Hooks()
