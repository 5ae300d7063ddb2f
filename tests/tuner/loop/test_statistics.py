import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.tuner.loop import statistics

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
