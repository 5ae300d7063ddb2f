"""One configuration from source to recorded evaluation: compile, verify, warm up, race, settle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from tilewright.kernels.space import Configuration
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.loop import statistics
from tilewright.tuner.outcome import (
    ALL_KINDS,
    L2,
    DeviceState,
    Evaluation,
    Executable,
    KindsPart,
    Outcome,
    Resources,
    Timing,
    Verification,
)

Clock = Callable[[], float]


@dataclass(frozen=True)
class MeasurementPlan:
    """How many samples a trial gets. A sample is one number from the bench; short launches are batched inside it."""

    least_samples: int = 7  # of a settled configuration that is not raced out
    settle_window: int = 3  # two windows with one median: warmed up (3 is the least with a median of its own)
    settle_tolerance: float = 0.02  # first samples are 4-9 % off on real GPUs; 2 % is well inside
    warm_up_samples: int = 15  # never settled by then: the noise itself, so measure it
    precision: float = 0.01  # stop when the interval's half width is 1 % of the median
    max_samples: int = 21  # the interval of 21 samples covers the middle 11
    alone_ms: float = 10.0  # a longer launch is sampled once at first, a shorter one `settle_window` times
    launch_margin: float = 0.5  # the verifying launch so far behind: one sample that agrees is enough
    single_margin: float = 0.25  # one or two samples: out when 25 % behind, far beyond a cold start's 9 %
    few_margin: float = 0.15  # three to five: out when all are 15 % behind
    race_margin: float = 0.05  # more samples: out when the interval is 5 % behind
    side_samples: int = 3  # of the L2 state that does not rank; 0 where nobody asks for it
    limit_s: float = 5.0  # wall seconds of sampling after which no further sample is asked for
    finalists: int = 4
    kinds: KindsPart = ALL_KINDS  # of inputs that the winner is verified with
    final_margin: float = 0.10  # farther behind the best trial than this is no finalist
    final_rounds: int = 11  # the 95 % interval then cuts one round from each end
    final_samples: int = 2  # per contestant and round
    drift_tolerance: float = 0.02  # from the first rounds to the last; ratios within a round hardly notice less
    final_repeats: int = 1  # of finals in which the device changed by more


DEFAULT_PLAN = MeasurementPlan()


class ContextLostError(TunerError):
    """The device can no longer be used by the running process: a configuration left its context broken.

    `evaluation` is what to record for `configuration` (None in the finals: its trial is recorded already, and it
    must not become a finalist again).
    """

    def __init__(self, configuration: Configuration, evaluation: Evaluation | None) -> None:
        self.configuration, self.evaluation = configuration, evaluation
        super().__init__(str(configuration))


class Samples(Protocol):
    """The part of a `device.Bench` that a trial needs."""

    def compile(self, configuration: Configuration) -> Executable:
        """See `device.Bench`."""

    def verify(self, executable: Executable) -> Verification:
        """See `device.Bench`."""

    def sample(self, executable: Executable, l2: L2, count: int) -> list[float]:
        """See `device.Bench`."""

    def state(self) -> DeviceState:
        """See `device.Bench`."""


def evaluate_here(
    bench: Samples,
    configuration: Configuration,
    ranking_l2: str,
    plan: MeasurementPlan = DEFAULT_PLAN,
    incumbent_ms: float | None = None,
    *,
    clock: Clock = time.monotonic,
) -> Evaluation:
    """The evaluation of one configuration, step by step in this process; a failure of its own making is a value.

    `Bench.evaluate` is the way in: a bench whose device is in another process runs all steps there by one call.

    With `incumbent_ms`, sampling ends as soon as the configuration is clearly slower; what was sampled is its time.
    Raises ContextLostError, which holds the evaluation, when the failure broke the device's context.
    """
    trial = _Trial(bench, configuration, "cold" if ranking_l2 == "cold" else "warm")
    try:
        return trial.run(plan, incumbent_ms, clock)
    except TrialFailure as failure:
        evaluation = trial.failed(failure.outcome, failure.log)
        if failure.sticky:
            raise ContextLostError(configuration, evaluation) from failure
        return evaluation


class _Trial:
    """The facts about one configuration so far, which a failure keeps."""

    def __init__(self, bench: Samples, configuration: Configuration, ranking_l2: L2) -> None:
        self.bench, self.configuration, self.ranking_l2 = bench, configuration, ranking_l2
        self.resources = Resources()
        self.compile_ms: float | None = None
        self.bound_ratio: float | None = None

    def run(self, plan: MeasurementPlan, incumbent_ms: float | None, clock: Clock) -> Evaluation:
        executable = self.bench.compile(self.configuration)
        self.resources, self.compile_ms = executable.resources, executable.compile_ms
        verification = self.bench.verify(executable)
        self.bound_ratio = verification.bound_ratio
        if not verification.is_right:
            return self.failed(Outcome.WRONG_RESULT, verification.message())
        draw = partial(checked_samples, self.bench, executable, self.ranking_l2)
        samples, dropped = _ranking_samples(draw, verification.launch_ms, plan, incumbent_ms, clock)
        state = self.bench.state()
        timings: dict[str, Timing] = {self.ranking_l2: timing(samples, self.ranking_l2)}
        # Nobody asks how slow a slow one is in the other state, and a launch of it takes longest.
        if not dropped and plan.side_samples:
            side_l2: L2 = "warm" if self.ranking_l2 == "cold" else "cold"
            # The first warm sample meets a flushed cache, so it is left out; cold ones are flushed one by one.
            extra = 1 if side_l2 == "warm" else 0
            side = checked_samples(self.bench, executable, side_l2, plan.side_samples + extra)[extra:]
            timings[side_l2] = timing(side, side_l2)
        return Evaluation(
            Outcome.MEASURED,
            warm=timings.get("warm"),
            cold=timings.get("cold"),
            ranking_l2=self.ranking_l2,
            resources=self.resources,
            bound_ratio=self.bound_ratio,
            compile_ms=self.compile_ms,
            clock_mhz=state.clock_mhz,
            temperature_c=state.temperature_c,
            log=verification.remark(),
        )

    def failed(self, outcome: Outcome, log: str) -> Evaluation:
        return Evaluation(
            outcome,
            ranking_l2=self.ranking_l2,
            resources=self.resources,
            bound_ratio=self.bound_ratio,
            compile_ms=self.compile_ms,
            log=log,
        )


def timing(samples: list[float], l2: str) -> Timing:
    """Median, spread and the samples themselves."""
    return Timing(statistics.median(samples), statistics.spread(samples), tuple(samples), l2)


def checked_samples(bench: Samples, executable: Executable, l2: str, count: int) -> list[float]:
    """`count` samples, each of which can be a time; TrialFailure(LAUNCH_FAILED) where one cannot."""
    samples = bench.sample(executable, cast("L2", l2), count)
    if len(samples) != count or not all(statistics.is_time(sample) for sample in samples):
        raise TrialFailure(Outcome.LAUNCH_FAILED, f"expected {count} times, but the device returned {samples}")
    return samples


def _ranking_samples(
    draw: Callable[[int], list[float]],
    launch_ms: float | None,
    plan: MeasurementPlan,
    incumbent_ms: float | None,
    clock: Clock,
) -> tuple[list[float], bool]:
    """The samples that rank this trial, and whether the race ended them early; `launch_ms` is of its first launch."""
    deadline = clock() + plan.limit_s
    first_ms = plan.alone_ms if launch_ms is None else launch_ms
    is_long = first_ms >= plan.alone_ms
    is_behind = incumbent_ms is not None and first_ms > (1 + plan.launch_margin) * incumbent_ms
    first = 1 if is_long or is_behind else plan.settle_window
    margins = plan.race_margin, plan.few_margin, plan.single_margin

    def lost(samples: list[float]) -> bool:
        return incumbent_ms is not None and statistics.is_clearly_slower(samples, incumbent_ms, *margins)

    samples = draw(first)
    if is_long and lost(samples) and samples[0] < plan.alone_ms:  # the host may have stood still
        samples += draw(1)
    if lost(samples) or clock() >= deadline:
        return samples, lost(samples)
    window = plan.settle_window
    samples += draw(2 * window - len(samples))
    while (
        not statistics.is_settled(samples, window, plan.settle_tolerance)
        and len(samples) + 1 < plan.warm_up_samples
        and clock() < deadline
    ):
        samples += draw(window)
    samples = samples[-2 * window :]
    if len(samples) < plan.least_samples and not lost(samples):
        samples += draw(plan.least_samples - len(samples))
    while not lost(samples) and len(samples) < plan.max_samples and clock() < deadline:
        interval = statistics.median_interval(samples)
        if interval.relative_width(statistics.median(samples)) <= plan.precision:
            break
        samples += draw(min(window, plan.max_samples - len(samples)))
    return samples, lost(samples)
