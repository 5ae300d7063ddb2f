"""One trial measured, and what its samples say."""

import itertools
import math
from dataclasses import replace

import made_recordings as made
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_only_the_ranking_state_is_sampled_where_nobody_asks_for_the_other():
    evaluation = evaluate_here(bench_of(made.entry(2.0, noise=0.001)), ONE, "warm", MeasurementPlan(side_samples=0))
    assert (len(evaluation.warm.samples_ms), evaluation.cold) == (7, None)


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


TIMES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60)


@given(TIMES)
@settings(max_examples=100, deadline=None)
def test_median_and_spread_are_those_of_numpy(samples):
    assert statistics.median(samples) == pytest.approx(np.median(samples))
    low, high = np.percentile(samples, [25, 75])
    assert statistics.spread(samples) == pytest.approx(high - low, abs=1e-9)


@given(TIMES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_interval_holds_the_median_whatever_the_order(samples, random):
    interval = statistics.median_interval(samples)
    assert interval.low <= statistics.median(samples) <= interval.high
    random.shuffle(samples)
    assert statistics.median_interval(samples) == interval


@pytest.mark.parametrize("count", [6, 11, 21, 60])
@pytest.mark.parametrize("noise", ["normal", "outliers", "skewed"])
def test_the_interval_covers_the_true_median_as_often_as_it_says(count, noise):
    rng = np.random.default_rng([count, len(noise)])
    draws = {
        "normal": rng.normal(10, 1, (2000, count)),
        "outliers": 10 + rng.standard_cauchy((2000, count)),
        "skewed": 9 + rng.exponential(1 / math.log(2), (2000, count)),  # median 10
    }[noise]
    intervals = [statistics.median_interval(row.tolist()) for row in draws]
    covered = np.mean([interval.low <= 10 <= interval.high for interval in intervals])
    # 2000 draws: three standard errors of a 95 % coverage are 1.5 points.
    assert covered >= 0.935


def test_the_interval_cuts_as_many_samples_as_the_binomial_allows():
    # 2 * P(Bin(n, 1/2) <= cut) <= 5 %: tables give the pairs (6: first and last), (9: 2nd and 8th), (20: 6th and 15th)
    for count, rank in ((5, 1), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6)):
        interval = statistics.median_interval(list(range(1, count + 1)))
        assert (interval.low, interval.high) == (rank, count + 1 - rank), count


def test_a_drift_that_both_share_does_not_hide_which_is_faster():
    rng = np.random.default_rng(3)
    drift = np.linspace(1, 1.3, 11)  # a card that warms up by 30 % over the rounds
    fast = drift * (1 + rng.normal(0, 0.003, 11))
    slow = 1.02 * drift * (1 + rng.normal(0, 0.003, 11))
    ratio, interval = statistics.ratio_interval(slow.tolist(), fast.tolist())
    assert ratio == pytest.approx(1.02, abs=0.005)
    assert interval.low > 1
    assert not statistics.is_tie(slow.tolist(), fast.tolist())
    apart = [statistics.median_interval(times.tolist()) for times in (fast, slow)]
    assert apart[0].high > apart[1].low  # side by side the intervals overlap


def test_equal_times_are_called_a_tie_as_often_as_promised():
    rng = np.random.default_rng(4)
    pairs = 1 + rng.normal(0, 0.02, (1000, 2, 11))
    ties = np.mean([statistics.is_tie(a.tolist(), b.tolist()) for a, b in pairs])
    assert ties >= 0.93


def test_samples_settle_after_a_cold_start_and_not_before():
    cold_start = [1.09, 1.07, 1.05, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [statistics.is_settled(cold_start[:n], 3, 0.02) for n in (5, 6, 7, 8, 9)] == [
        False,
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("samples", "slower"),
    [
        ([1.2], False),
        ([1.3], True),
        ([1.3, 1.2], False),
        ([1.16, 1.18, 1.2], True),
        ([1.14, 1.5, 1.6, 1.6, 1.6], False),
        ([1.06, 1.08, 1.2, 1.2, 1.2, 1.2], True),
        ([1.04, 1.5, 1.6, 1.6, 1.6, 1.6], False),
    ],
)
def test_only_what_is_clearly_slower_is_dropped(samples, slower):
    assert statistics.is_clearly_slower(samples, 1.0, margin=0.05, few_margin=0.15, single_margin=0.25) is slower


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_what_cannot_be_a_time(value):
    assert not statistics.is_time(value)
    assert statistics.is_time(1e-9)


def test_noise_alone_is_hardly_ever_a_drift():
    rng = np.random.default_rng(3)
    found = [statistics.drift(1 + 0.05 * rng.standard_normal(11)) for _ in range(2000)]
    assert np.mean(np.array(found) != 0) < 0.045


@pytest.mark.parametrize("change", [-0.1, -0.03, 0.03, 0.1])
def test_a_step_and_a_ramp_beyond_the_noise_are_found_with_their_size(change):
    rng = np.random.default_rng(4)
    noise = 0.003 * rng.standard_normal(11)
    step = [1 + change * (i >= 5) for i in range(11)]
    ramp = [1 + change * i / 10 for i in range(11)]
    assert statistics.drift(list(np.array(step) + noise)) == pytest.approx(change, abs=0.006)
    assert statistics.drift(list(np.array(ramp) + noise)) == pytest.approx(0.7 * change, abs=0.01)


def test_a_few_values_show_no_drift():
    assert [statistics.drift([1.0] * (count // 2) + [2.0] * (count - count // 2)) for count in range(6)] == [0.0] * 6
    assert statistics.drift([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]) == 1.0
