"""The last round: the leading configurations and the library, timed again side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.kernels.space import Configuration
from tilewright.tuner import statistics
from tilewright.tuner.device import Bench, Executable
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.measure import DEFAULT_PLAN, ContextLostError, MeasurementPlan, checked_samples


@dataclass(frozen=True)
class Finalist:
    """A configuration of the last, interleaved round: the median of its rounds and the 95 % interval.

    `ties`: round by round, nothing shows that the winner is faster; false for the winner itself.
    """

    configuration: Configuration
    time_ms: float
    ci_ms: tuple[float, float]
    samples_ms: tuple[float, ...]  # one median per round, in the order of the rounds
    ties: bool


@dataclass(frozen=True)
class LibraryTime:
    """The library's time in the same interleaved rounds. `faster`: round by round, beyond the 95 % interval."""

    name: str
    time_ms: float
    ci_ms: tuple[float, float]
    faster: bool


@dataclass(frozen=True)
class Dropped:
    """A configuration that had a verified trial and failed in the finals: its result should be retracted."""

    configuration: Configuration
    reason: str


@dataclass(frozen=True)
class Standing:
    """How the finals ended: the finalists best first, the library, the default's time there, and who failed."""

    finalists: tuple[Finalist, ...] = ()
    library: LibraryTime | None = None
    default_ms: float | None = None
    dropped: tuple[Dropped, ...] = ()


@dataclass
class _Contestant:
    configuration: Configuration | None  # None: the library
    executable: Executable
    competes: bool
    rounds_ms: list[float] = field(default_factory=list)

    @property
    def time_ms(self) -> float:
        return statistics.median(self.rounds_ms)

    @property
    def ci_ms(self) -> tuple[float, float]:
        interval = statistics.median_interval(self.rounds_ms)
        return interval.low, interval.high


def finals(
    bench: Bench,
    configurations: Sequence[Configuration],
    ranking_l2: str,
    plan: MeasurementPlan = DEFAULT_PLAN,
    *,
    default: Configuration | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Standing | None:
    """The standing after `plan.final_rounds` interleaved rounds, the winner verified afresh; None when stopped.

    `default` runs beside them, so that the gain over it is stated from the same minutes, and cannot win.
    Raises ContextLostError, without an evaluation, when a finalist broke the device's context.
    """
    dropped: list[Dropped] = []
    contestants = _enter(bench, configurations, default, dropped)
    for number in range(-1, plan.final_rounds):  # round -1 warms up and is not kept
        if should_stop():
            return None
        # Each round starts with another contestant, so that nobody always follows the same one.
        shift = number % max(1, len(contestants))
        for contestant in contestants[shift:] + contestants[:shift]:
            count = plan.final_samples
            try:
                samples = checked_samples(bench, contestant.executable, ranking_l2, count)
            except TrialFailure as failure:
                _drop(contestant.configuration, failure, dropped)
                contestants = [c for c in contestants if c is not contestant]
                continue
            if number >= 0:
                contestant.rounds_ms.append(statistics.median(samples))
    ranked = sorted((c for c in contestants if c.competes), key=lambda c: c.time_ms)
    ranked = _verified(bench, ranked, dropped)
    library = next((c for c in contestants if c.configuration is None), None)
    return Standing(
        finalists=_finalists(ranked),
        library=_library_time(bench, library, ranked),
        default_ms=next((c.time_ms for c in contestants if c.configuration == default is not None), None),
        dropped=tuple(dropped),
    )


def _enter(
    bench: Bench, configurations: Sequence[Configuration], default: Configuration | None, dropped: list[Dropped]
) -> list[_Contestant]:
    contestants: list[_Contestant] = []
    beside = [default] if configurations and default is not None and default not in configurations else []
    for configuration in [*configurations, *beside]:
        try:
            executable = bench.compile(configuration)
            contestants.append(_Contestant(configuration, executable, competes=configuration in configurations))
        except TrialFailure as failure:
            _drop(configuration, failure, dropped)
    library = bench.library() if contestants else None
    if library is not None:
        contestants.append(_Contestant(None, library, competes=False))
    return contestants


def _drop(configuration: Configuration | None, failure: TrialFailure, dropped: list[Dropped]) -> None:
    if configuration is None:
        if failure.sticky:
            raise failure  # the library broke the context: nothing that a configuration could be blamed for
        return
    if failure.sticky:
        raise ContextLostError(configuration, None) from failure
    dropped.append(Dropped(configuration, f"{failure.outcome}: {failure.log}"))


def _verified(bench: Bench, ranked: list[_Contestant], dropped: list[Dropped]) -> list[_Contestant]:
    """The contestants from the first one on that a fresh launch finds right."""
    for place, contestant in enumerate(ranked):
        assert contestant.configuration is not None  # noqa: S101 - the library is not ranked here
        try:
            verification = bench.verify(contestant.executable)
        except TrialFailure as failure:
            _drop(contestant.configuration, failure, dropped)
            continue
        if verification.wrong == 0 and verification.bound_ratio < float("inf"):
            return ranked[place:]
        dropped.append(Dropped(contestant.configuration, verification.message()))
    return []


def _finalists(ranked: list[_Contestant]) -> tuple[Finalist, ...]:
    return tuple(
        Finalist(
            configuration=contestant.configuration,
            time_ms=contestant.time_ms,
            ci_ms=contestant.ci_ms,
            samples_ms=tuple(contestant.rounds_ms),
            ties=contestant is not ranked[0] and statistics.is_tie(contestant.rounds_ms, ranked[0].rounds_ms),
        )
        for contestant in ranked
        if contestant.configuration is not None
    )


def _library_time(bench: Bench, library: _Contestant | None, ranked: list[_Contestant]) -> LibraryTime | None:
    if library is None:
        return None
    faster = True  # than nothing
    if ranked:
        _, interval = statistics.ratio_interval(library.rounds_ms, ranked[0].rounds_ms)
        faster = interval.high < 1
    return LibraryTime(bench.library_name() or "library", library.time_ms, library.ci_ms, faster)
