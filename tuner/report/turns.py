"""Steps verified and then timed in turn on one bench, so that a change in the device affects all of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.loop.measure import MeasurementPlan
from tilewright.tuner.loop.rounds import Contestant, play
from tilewright.tuner.loop.verify import verify_configuration, verify_library_call
from tilewright.tuner.report.rows import Time

LIBRARY = "library"


class BrokenStepError(TunerError):
    """A step broke the device; nothing measured after it would be worth anything."""


@dataclass(frozen=True)
class Measured:
    """The outcome of a step; `problem` where it differs from the table's."""

    time: Time | None = None
    bound_ratio: float | None = None
    left_out: str = ""
    problem: Problem | None = None


def times(
    bench: Bench, configurations: Mapping[str, Configuration], l2: str, plan: MeasurementPlan, *, library: bool
) -> dict[str, Measured]:
    """Per step's key, the outcome of interleaved rounds of verified contestants; the library has a key of its own."""
    measured: dict[str, Measured] = {}
    contestants: dict[str, Contestant] = {}
    for key, configuration in configurations.items():
        entered = _enter(bench, configuration)
        if isinstance(entered, str):
            measured[key] = Measured(left_out=entered)
        else:
            contestants[key] = entered
    try:
        called = bench.library() if library else None
    except TrialFailure as failure:
        called, measured[LIBRARY] = None, Measured(left_out=_reason(failure))
    if called is not None:
        contestants[LIBRARY] = Contestant(None, called)
        contestants[LIBRARY].bound_ratio = _library_ratio(bench, contestants[LIBRARY])
    playing = list(contestants.values())

    def drop(contestant: Contestant, failure: TrialFailure) -> None:
        key = next(key for key, one in contestants.items() if one is contestant)
        measured[key] = Measured(left_out=_reason(failure))

    play(bench, playing, l2, plan, should_stop=lambda: False, drop=drop)
    for key, one in contestants.items():
        if one in playing:
            measured[key] = Measured(Time(one.time_ms, *one.ci_ms, len(one.rounds_ms)), one.bound_ratio)
    return measured


def _enter(bench: Bench, configuration: Configuration) -> Contestant | str:
    """A contestant that is right with every kind of inputs, or the reason why it is left out."""
    try:
        executable = bench.compile(configuration)
        verification = verify_configuration(bench, executable)
    except TrialFailure as failure:
        return _reason(failure)
    if not verification.is_right:
        return verification.message()
    contestant = Contestant(configuration, executable)
    contestant.bound_ratio = verification.bound_ratio
    return contestant


def _library_ratio(bench: Bench, library: Contestant) -> float | None:
    try:
        verification = verify_library_call(bench, library.executable)
    except TrialFailure as failure:
        _reason(failure)
        return None
    return None if verification is None else verification.bound_ratio


def _reason(failure: TrialFailure) -> str:
    """The reason why a contestant is left out; raises BrokenStepError where it broke the context for all after it."""
    if failure.sticky:
        raise BrokenStepError(f"{failure.outcome}: {failure.log}") from failure
    return f"{failure.outcome}: {failure.log[:200]}"
