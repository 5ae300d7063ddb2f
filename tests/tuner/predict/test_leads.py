"""How far ours was ahead at tuned shapes, and what is made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.tuner.predict.leads import Leads
from tilewright.tuner.predict.library import LEAST_ERROR, Left, LibraryTimes

NAN = math.nan


def test_a_shape_without_a_time_of_the_library_does_not_count():
    leads = Leads.of(np.array([2.0, NAN, 8.0]), np.array([1.0, 1.0, 1.0]), np.zeros(3))
    assert leads.near(np.array([50.0, 0.0, 50.0])) == pytest.approx(math.log(4))
    assert not Leads.of(np.array([1.0, NAN]), np.array([1.0, 0.1]), np.zeros(2)).may_gain(np.array([3.0, 0.0]))


def test_near_shapes_count_more_and_losses_are_taken_off():
    leads = Leads.of(np.array([2.0, 0.5]), np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    assert leads.near(np.array([0.0, 40.0])) == pytest.approx(0.0, abs=1e-6)
    assert leads.near(np.array([40.0, 0.0])) == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize(("gains", "may_gain"), [(1, False), (2, True)])
def test_more_than_a_tenth_of_the_shapes_near_must_gain(gains, may_gain):
    library_ms = np.where(np.arange(19) < gains, 1.2, 1.05)
    assert Leads.of(library_ms, np.ones(19), np.zeros(19)).may_gain(np.ones(19)) is may_gain


def test_each_shape_is_left_out_of_its_own_expectation():
    leads = Leads.of(np.array([NAN, 2.0, 4.0]), np.ones(3), np.zeros(3))
    distances = [np.array([9.0, 0.0, 1.0]), np.array([9.0, 1.0, 0.0])]
    assert leads.near_left_out(distances) == pytest.approx(np.log([4.0, 2.0]))


def fitted(off, near_off):
    """Of a library whose time is a millisecond at every size, where expectations were off by these."""
    timed = [(size, 1.0) for size in range(1, 9)]
    zeros = np.zeros(8)
    left = Left(zeros + off, zeros + 0.1, zeros, zeros + near_off)
    return LibraryTimes.fit(lambda size: [float(size)], lambda size: size, timed, left)


def test_the_estimate_that_is_less_off_at_tuned_shapes_decides():
    by_functions = fitted(LEAST_ERROR, 3.0).expected(4, "made", ours_ms=1.0, deviation=0.1, near_lead=math.log(5))
    by_nearness = fitted(3.0, LEAST_ERROR).expected(4, "made", ours_ms=1.0, deviation=0.1, near_lead=math.log(5))
    assert by_functions.time_ms == pytest.approx(1, rel=0.02)
    assert by_nearness.time_ms == pytest.approx(5, rel=0.02)


def test_where_less_is_known_the_library_is_expected_to_be_faster():
    times = fitted(0.3, 0.3)
    near, far = (times.expected(4, "made", ours_ms=1.0, deviation=d, near_lead=0.0).time_ms for d in (0.1, 0.4))
    assert far < near < 1
