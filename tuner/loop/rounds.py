"""Interleaved rounds: a change in the device affects all contestants alike, and is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.bench import Bench
from tilewright.tuner.loop.measure import MeasurementPlan, checked_samples
from tilewright.tuner.outcome import Executable, Outcome

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Contestant:
    """A participant and the median of each round; the library has no configuration and cannot win."""

    configuration: Configuration | None
    executable: Executable
    rounds_ms: list[float] = field(default_factory=list)
    bound_ratio: float | None = None

    @property
    def time_ms(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.rounds_ms)

    @property
    def ci_ms(self) -> tuple[float, float]:
        """The 95 % interval of that median."""
        interval = statistics.median_interval(self.rounds_ms)
        return interval.low, interval.high


@dataclass(frozen=True)
class Steadiness:
    """Drift from the first rounds to the last, as ratios minus 1: of all contestants' times, and of the clock.

    Zero where the noise shows no change. `clock_drift` is None where the device tells no clock. `attempts`: how often
    the rounds were played until they were steady, or no more were allowed.
    """

    time_drift: float
    clock_drift: float | None
    is_steady: bool
    attempts: int = 1


def play(
    bench: Bench,
    contestants: list[Contestant],
    ranking_l2: str,
    plan: MeasurementPlan,
    *,
    should_stop: Callable[[], bool],
    drop: Callable[[Contestant, TrialFailure], None],
) -> Steadiness | None:
    """Plays `plan.final_rounds`, again where the device changed meanwhile; the steadiness of the last rounds.

    A contestant that fails is handed to `drop` and leaves `contestants`. None when stopped.
    """
    attempts = 0
    while True:
        clocks_mhz = _rounds(bench, contestants, ranking_l2, plan, should_stop, drop)
        if clocks_mhz is None:
            return None
        attempts += 1
        steadiness = _steadiness(contestants, clocks_mhz, plan, attempts)
        if steadiness.is_steady or attempts > plan.final_repeats:
            return steadiness


def _rounds(
    bench: Bench,
    contestants: list[Contestant],
    ranking_l2: str,
    plan: MeasurementPlan,
    should_stop: Callable[[], bool],
    drop: Callable[[Contestant, TrialFailure], None],
) -> list[int | None] | None:
    """The clock at the end of each round, in MHz; None when stopped."""
    clocks_mhz: list[int | None] = []
    for contestant in contestants:
        contestant.rounds_ms.clear()
    for number in range(-1, plan.final_rounds):  # round -1 warms up and is not kept
        if should_stop():
            return None
        _renew(bench, number)
        # Each round starts with another contestant, so that nobody always follows the same one.
        shift = number % max(1, len(contestants))
        for contestant in contestants[shift:] + contestants[:shift]:
            try:
                samples = once_more(checked_samples, bench, contestant.executable, ranking_l2, plan.final_samples)
            except TrialFailure as failure:
                drop(contestant, failure)
                contestants.remove(contestant)
                continue
            if number >= 0:
                contestant.rounds_ms.append(statistics.median(samples))
        if number >= 0 and contestants:
            clocks_mhz.append(_clock_mhz(bench))
    return clocks_mhz


def _renew(bench: Bench, number: int) -> None:
    """Switches to other inputs for this round; keeps those of the round before if the device is not ready in time."""
    try:
        once_more(bench.renew, number)
    except TrialFailure as failure:
        if failure.sticky:
            raise


def _clock_mhz(bench: Bench) -> int | None:
    """The clock, None where the device does not report it in time: that is no reason to end a job."""
    try:
        return once_more(bench.state).clock_mhz
    except TrialFailure as failure:
        if failure.sticky:
            raise
        return None


def once_more(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """The call's result; the call is repeated once where the device's process was lost outside of a launch, or the
    surroundings ended it.

    That is not the contestant's doing, and a dropped finalist is barred. The second call finds a new process.
    """
    try:
        return call(*arguments, **options)
    except TrialFailure as failure:
        if failure.outcome not in {Outcome.DEVICE_LOST, Outcome.INTERRUPTED} or failure.sticky:
            raise
    return call(*arguments, **options)


def _steadiness(
    contestants: list[Contestant], clocks_mhz: list[int | None], plan: MeasurementPlan, attempts: int
) -> Steadiness:
    # The geometric mean over contestants: what one of them does by itself counts little, what all do counts in full.
    rounds = zip(*(contestant.rounds_ms for contestant in contestants), strict=True)
    common_ms = [math.exp(sum(map(math.log, times)) / len(times)) for times in rounds]
    known_mhz = [float(clock) for clock in clocks_mhz if clock]
    time_drift = statistics.drift(common_ms)
    clock_drift = statistics.drift(known_mhz) if known_mhz else None
    worst = max(abs(time_drift), abs(clock_drift or 0.0))
    return Steadiness(time_drift, clock_drift, worst <= plan.drift_tolerance, attempts)
