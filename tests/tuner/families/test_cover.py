"""Ranges that cover an axis: complete, few, and as cheap as any."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.kernels.space import Configuration
from tilewright.tuner.families.cover import NO_GAIN, NoCoverError, Span, cover, mean_loss, serving

SOME = [Configuration.of(f"v{i}", {"TILE": i}) for i in range(4)]
SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=5, unique=True).map(sorted)


@st.composite
def measured(draw: st.DrawFn) -> dict[Configuration, dict[int, float]]:
    """Times of some configurations at some sizes, of which the first has them all."""
    sizes = draw(SIZES)
    time = st.floats(0.01, 10.0)
    times = {SOME[0]: {size: draw(time) for size in sizes}}
    for configuration in SOME[1 : draw(st.integers(1, len(SOME)))]:
        times[configuration] = {size: draw(time) for size in sizes if draw(st.booleans())}
    return times


@given(measured(), st.integers(1, 4))
def test_every_size_has_one_range_and_they_are_no_more_than_asked(
    times: dict[Configuration, dict[int, float]], most: int
) -> None:
    sizes = sorted(times[SOME[0]])
    spans = cover(times, 1, 5000, most)
    assert spans[0].low == 1
    assert spans[-1].high == 5000
    assert all(after.low == before.high + 1 for before, after in pairwise(spans))
    assert all(span.low <= span.high for span in spans)
    assert len(spans) <= most
    assert all(size in times[serving(spans, size)] for size in sizes)


@given(measured(), st.integers(1, 3))
@settings(max_examples=60)
def test_no_other_cover_loses_less(times: dict[Configuration, dict[int, float]], most: int) -> None:
    """Beside every way to cut the sizes into so many runs and to give each a configuration."""
    sizes = sorted(times[SOME[0]])
    best = {size: min(of_one[size] for of_one in times.values() if size in of_one) for size in sizes}
    least = math.inf
    for parts in range(1, min(most, len(sizes)) + 1):
        for cuts in combinations(range(1, len(sizes)), parts - 1):
            runs = [sizes[a:b] for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True)]
            for chosen in product(times, repeat=parts):
                served = [
                    (times[c].get(size, math.inf), size) for c, run in zip(chosen, runs, strict=True) for size in run
                ]
                least = min(least, sum(math.log(time / best[size]) for time, size in served))
    spans = cover(times, 1, 5000, most)
    loss = sum(math.log(times[serving(spans, size)][size] / best[size]) for size in sizes)
    assert loss <= least + NO_GAIN * len(sizes) + 1e-9
    mean, largest = mean_loss(spans, times)
    assert mean == pytest.approx(math.exp(loss / len(sizes)) - 1)
    assert largest >= mean - 1e-12


def test_ranges_meet_where_times_cross() -> None:
    times = {SOME[0]: {100: 1.0, 200: 3.0}, SOME[1]: {100: 2.0, 200: 2.0}}
    assert cover(times, 1, 200) == [Span(1, 150, SOME[0]), Span(151, 200, SOME[1])]


def test_a_range_that_hardly_gains_is_not_worth_a_module() -> None:
    times = {SOME[0]: {1: 1.0, 2: 1.0}, SOME[1]: {1: 1.001, 2: 0.999}}
    assert len(cover(times, 1, 2)) == 1


def test_a_size_that_nothing_was_right_at_cannot_be_covered() -> None:
    with pytest.raises(NoCoverError):
        cover({SOME[0]: {}}, 1, 9)
    with pytest.raises(NoCoverError):
        cover({SOME[0]: {1: 1.0}, SOME[1]: {2: 1.0}}, 1, 9, most=1)
