import itertools
import math
from dataclasses import replace

import made_recordings as made
import numpy as np
import pytest

from tilewright.kernels.space import Configuration
from tilewright.tuner.loop import statistics
from tilewright.tuner.loop.measure import ContextLostError, MeasurementPlan, evaluate_here
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.recorded.recordings import Entry
from tilewright.tuner.recorded.replay import ReplayBench

ONE = Configuration.of("v", {"TILE": 1})


def bench_of(entry):
    return ReplayBench(made.of({ONE: entry}, v=[("TILE", (1,))]))


def warm(samples):
    return Entry(Outcome.MEASURED, {"warm": tuple(samples)})


def test_a_quiet_configuration_needs_few_samples_and_both_l2_states_are_recorded():
    bench = bench_of(made.entry(2.0, noise=0.001))
    evaluation = evaluate_here(bench, ONE, "warm")
    assert evaluation.outcome is Outcome.MEASURED
    assert evaluation.time_ms == pytest.approx(2.0, rel=0.003)
    assert evaluation.cold.time_ms == pytest.approx(3.0, rel=0.01)
    assert len(evaluation.warm.samples_ms) == 7
    assert len(evaluation.cold.samples_ms) == 3
    assert evaluation.compile_ms == 3.0


def test_the_ranking_state_is_the_one_asked_for():
    evaluation = evaluate_here(bench_of(made.entry(2.0, noise=0.001)), ONE, "cold")
    assert evaluation.time_ms == pytest.approx(3.0, rel=0.003)
    assert len(evaluation.warm.samples_ms) == 3


def test_a_noisy_configuration_gets_samples_up_to_the_limit():
    plan = MeasurementPlan()
    evaluation = evaluate_here(bench_of(made.entry(2.0, noise=0.2, count=60)), ONE, "warm", plan)
    assert len(evaluation.warm.samples_ms) == plan.max_samples
    assert evaluation.warm.spread_ms > 0.1


def test_a_cold_start_is_left_out_of_the_time():
    ramp = [1.3, 1.2, 1.15, 1.1, 1.06, 1.04, 1.02, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    evaluation = evaluate_here(bench_of(warm([2 * x for x in ramp] + [2.0] * 40)), ONE, "warm")
    assert evaluation.time_ms == pytest.approx(2.0, rel=0.011)
    assert max(evaluation.warm.samples_ms) <= 2.08


def test_far_behind_the_incumbent_two_short_samples_are_enough():
    bench = bench_of(made.entry(2.0))
    evaluation = evaluate_here(bench, ONE, "warm", incumbent_ms=1.0)
    assert len(evaluation.warm.samples_ms) == 2
    assert evaluation.time_ms == pytest.approx(2.0, rel=0.01)
    assert evaluation.cold is None  # of what is out of the race, the other state is no news
    assert bench.drawn_ms == pytest.approx(4.0, rel=0.01)


def test_far_behind_the_incumbent_three_samples_of_a_short_launch_are_enough(monkeypatch):
    bench = bench_of(made.entry(1.2, noise=0.001))
    verify = bench.verify
    monkeypatch.setattr(bench, "verify", lambda executable: replace(verify(executable), launch_ms=1.3))
    evaluation = evaluate_here(bench, ONE, "warm", incumbent_ms=1.0)
    assert len(evaluation.warm.samples_ms) == 3
    assert evaluation.time_ms == pytest.approx(1.2, rel=0.01)
    assert len(evaluate_here(bench, ONE, "warm", incumbent_ms=1.1).warm.samples_ms) == 6  # 9 % behind


def test_a_long_sample_needs_no_second_one():
    bench = bench_of(made.entry(20.0))
    assert len(evaluate_here(bench, ONE, "warm", incumbent_ms=10.0).warm.samples_ms) == 1
    assert bench.drawn_ms == pytest.approx(20.0, rel=0.01)


def test_one_sample_in_which_the_host_stood_still_loses_no_race():
    evaluation = evaluate_here(bench_of(warm([9.0] + [1.0] * 40)), ONE, "warm", incumbent_ms=1.01)
    assert evaluation.time_ms == 1.0
    assert evaluation.cold is not None


def test_racing_drops_the_clearly_slower_and_never_the_faster():
    rng = np.random.default_rng(11)
    counts = {}
    for ratio, repeat in itertools.product((0.9, 0.97, 1.0, 1.15), range(40)):
        samples = ratio * (1 + 0.02 * rng.standard_normal(60))
        evaluation = evaluate_here(bench_of(warm(samples)), ONE, "warm", incumbent_ms=1.0)
        counts.setdefault(ratio, []).append(len(evaluation.warm.samples_ms))
        assert evaluation.time_ms == pytest.approx(ratio, rel=0.03), repeat
    full = np.mean(counts[0.9])
    assert np.mean(counts[1.15]) < 0.6 * full
    assert np.mean(counts[0.97]) == pytest.approx(full, rel=0.25)


def test_sampling_ends_with_its_wall_time():
    ticks = itertools.count(0, 3.0)
    evaluation = evaluate_here(
        bench_of(made.entry(2.0, noise=0.3)), ONE, "warm", MeasurementPlan(limit_s=5.0), clock=lambda: next(ticks)
    )
    assert evaluation.outcome is Outcome.MEASURED
    assert len(evaluation.warm.samples_ms) == 7


@pytest.mark.parametrize(
    "outcome",
    [o for o in Outcome if o is not Outcome.MEASURED],
)
def test_every_failure_becomes_a_value_without_a_time(outcome):
    evaluation = evaluate_here(bench_of(made.failed(outcome, "said so")), ONE, "warm")
    assert evaluation.outcome is outcome
    assert evaluation.time_ms is None
    assert evaluation.log


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("place", [0, 4])
def test_what_cannot_be_a_time_is_never_recorded_as_one(bad, place):
    samples = [1.0] * 12
    samples[place] = bad
    evaluation = evaluate_here(bench_of(warm(samples)), ONE, "warm")
    assert evaluation.outcome is Outcome.LAUNCH_FAILED
    assert evaluation.time_ms is None
    assert str(bad) in evaluation.log


def test_a_wrong_result_is_not_timed():
    bench = bench_of(made.failed(Outcome.WRONG_RESULT))
    evaluation = evaluate_here(bench, ONE, "warm")
    assert evaluation.bound_ratio == math.inf
    assert bench.drawn_ms == 0


def test_a_broken_context_is_raised_with_the_evaluation_to_record():
    bench = made.BenchWithLibrary(made.of({ONE: made.entry(1.0)}, v=[("TILE", (1,))]), sticky=ONE)
    with pytest.raises(ContextLostError) as caught:
        evaluate_here(bench, ONE, "warm")
    assert caught.value.evaluation.outcome is Outcome.LAUNCH_FAILED
    assert caught.value.evaluation.log == "illegal address"
    assert caught.value.configuration == ONE


def test_the_recorded_median_is_that_of_its_samples():
    timing = evaluate_here(bench_of(made.entry(2.0, noise=0.05)), ONE, "warm").warm
    assert timing.time_ms == statistics.median(timing.samples_ms)


def test_the_first_warm_sample_beside_a_cold_ranking_is_left_out():
    times = {"cold": (3.0,) * 40, "warm": (9.0, 2.0, 2.0, 2.0, *[5.0] * 30)}
    evaluation = evaluate_here(bench_of(Entry(Outcome.MEASURED, times)), ONE, "cold")
    assert evaluation.warm.samples_ms == (2.0, 2.0, 2.0)
