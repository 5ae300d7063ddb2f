"""The last round: the leading configurations and the library, timed again side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.measure import DEFAULT_PLAN, ContextLostError, MeasurementPlan
from tilewright.tuner.loop.rounds import Contestant, Steadiness, once_more, play
from tilewright.tuner.loop.verify import verify_configuration, verify_library_call
from tilewright.tuner.outcome import KindsPart

log = logging.getLogger(__name__)


NOT_VERIFIED = ", not verified"
"""A suffix for the name of a library's call that was wrong or could not be verified: it is no answer."""


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
    bound_ratio: float | None = None  # the worst over every kind of inputs; looked at for the winner only


@dataclass(frozen=True)
class LibraryTime:
    """The library's time in the same interleaved rounds. `faster`: round by round, beyond the 95 % interval."""

    name: str
    time_ms: float
    ci_ms: tuple[float, float]
    faster: bool
    bound_ratio: float | None = None  # as the winner's; None where nothing can look at what the library computes


@dataclass(frozen=True)
class DroppedFinalist:
    """A configuration that had a verified trial and failed in the finals: its result should be retracted."""

    configuration: Configuration
    reason: str


@dataclass(frozen=True)
class FinalsResult:
    """The result of the finals: finalists best first, the library, the default's time, failures, steadiness.

    `library_failure`: what kept the library's time or its error from being known; None where there is no library.
    """

    finalists: tuple[Finalist, ...] = ()
    library: LibraryTime | None = None
    library_failure: str | None = None
    default_ms: float | None = None
    dropped: tuple[DroppedFinalist, ...] = ()
    steadiness: Steadiness | None = None  # None where nobody was timed


def finals(
    bench: Bench,
    configurations: Sequence[Configuration],
    ranking_l2: str,
    plan: MeasurementPlan = DEFAULT_PLAN,
    *,
    default: Configuration | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> FinalsResult | None:
    """The result of `plan.final_rounds` interleaved rounds, with the winner verified again; None when stopped.

    Rounds during which the device changed (a clock, a neighbour) are played again, and then its standing says so.
    `default` takes part even where its trial is far behind: the gain over it is stated from the same minutes, and
    nothing slower than it wins.
    Raises ContextLostError, without an evaluation, when a finalist broke the device's context.
    """
    fallen = _Fallen()
    contestants = _enter(bench, configurations, default, fallen)
    steadiness = play(
        bench,
        contestants,
        ranking_l2,
        plan,
        should_stop=should_stop,
        drop=lambda contestant, failure: fallen.add(contestant.configuration, failure),
    )
    if steadiness is None:
        return None
    ranked = sorted((c for c in contestants if c.configuration is not None), key=lambda c: c.time_ms)
    ranked = _verified(bench, ranked, fallen, plan.kinds)
    called = next((c for c in contestants if c.configuration is None), None)
    library = None if called is None else _library_time(bench, called, ranked, fallen, plan.kinds)
    return FinalsResult(
        finalists=_finalists(ranked),
        library=library,
        library_failure=fallen.library,
        default_ms=next((c.time_ms for c in contestants if c.configuration == default is not None), None),
        dropped=tuple(fallen.dropped),
        steadiness=steadiness if contestants else None,
    )


@dataclass
class _Fallen:
    """The contestants that left the finals early, with the reasons."""

    dropped: list[DroppedFinalist] = field(default_factory=list)
    library: str | None = None

    def add(self, configuration: Configuration | None, failure: TrialFailure) -> None:
        """Notes the failure of a finalist, or of the library (None); raises where it broke the context."""
        reason = f"{failure.outcome}: {failure.log}"
        if configuration is None:
            if failure.sticky:
                raise failure  # nothing that a configuration could be blamed for
            log.warning("The library left the finals: %s", reason)
            self.library = reason
        elif failure.sticky:
            raise ContextLostError(configuration, None) from failure
        else:
            self.dropped.append(DroppedFinalist(configuration, reason))


def _enter(
    bench: Bench, configurations: Sequence[Configuration], default: Configuration | None, fallen: _Fallen
) -> list[Contestant]:
    contestants: list[Contestant] = []
    beside = [default] if configurations and default is not None and default not in configurations else []
    for configuration in [*configurations, *beside]:
        try:
            executable = once_more(bench.compile, configuration)
            contestants.append(Contestant(configuration, executable))
        except TrialFailure as failure:
            fallen.add(configuration, failure)
    if contestants:
        try:
            library = once_more(bench.library)
            if library is not None:
                contestants.append(Contestant(None, library))
        except TrialFailure as failure:
            fallen.add(None, failure)
    return contestants


def _verified(bench: Bench, ranked: list[Contestant], fallen: _Fallen, kinds: KindsPart) -> list[Contestant]:
    """The contestants from the first one on that is right with each of these kinds of inputs."""
    for place, contestant in enumerate(ranked):
        assert contestant.configuration is not None  # noqa: S101 - the library is not ranked here
        try:
            verification = once_more(verify_configuration, bench, contestant.executable, kinds)
        except TrialFailure as failure:
            fallen.add(contestant.configuration, failure)
            continue
        contestant.bound_ratio = verification.bound_ratio
        if verification.is_right:
            return ranked[place:]
        fallen.dropped.append(DroppedFinalist(contestant.configuration, verification.message()))
    return []


def _finalists(ranked: list[Contestant]) -> tuple[Finalist, ...]:
    return tuple(
        Finalist(
            configuration=contestant.configuration,
            time_ms=contestant.time_ms,
            ci_ms=contestant.ci_ms,
            samples_ms=tuple(contestant.rounds_ms),
            ties=contestant is not ranked[0] and statistics.is_tie(contestant.rounds_ms, ranked[0].rounds_ms),
            bound_ratio=contestant.bound_ratio,
        )
        for contestant in ranked
        if contestant.configuration is not None
    )


def _library_time(
    bench: Bench, library: Contestant, ranked: list[Contestant], fallen: _Fallen, kinds: KindsPart
) -> LibraryTime:
    faster = True  # than nothing
    if ranked:
        _, interval = statistics.ratio_interval(library.rounds_ms, ranked[0].rounds_ms)
        faster = interval.high < 1
    name, bound_ratio, is_right = None, None, False
    try:
        name = once_more(bench.library_name)
        verification = once_more(verify_library_call, bench, library.executable, kinds)
        bound_ratio = None if verification is None else verification.bound_ratio
        is_right = verification is None or verification.is_right
    except TrialFailure as failure:
        fallen.add(None, failure)
    name = name or "library"
    return LibraryTime(
        name if is_right else f"{name}{NOT_VERIFIED}", library.time_ms, library.ci_ms, faster, bound_ratio
    )
