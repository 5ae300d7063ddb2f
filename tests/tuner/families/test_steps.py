"""Times at sizes that nobody measured: bounds that a device which works by whole tiles keeps to."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.tuner.families.steps import ends, least_ms, most_ms, tiles

TILES = st.one_of(st.just(0), st.integers(1, 400))
SIZES = st.lists(st.integers(1, 8192), min_size=1, max_size=8, unique=True)


@given(TILES, SIZES, st.integers(1, 8192), st.integers(1, 200))
def test_a_device_that_takes_rounds_of_tiles_keeps_to_both_bounds(tile, measured, size, at_once):
    """Beyond the largest measured size a round may begin that the average does not know."""

    def time_ms(rows):
        return float(math.ceil(tiles(rows, tile) / at_once))

    times = {one: time_ms(one) for one in measured}
    assert least_ms(times, tile, size) <= time_ms(size) + 1e-12
    if size <= max(measured):
        assert most_ms(times, tile, [size])[size] >= time_ms(size)


def test_as_many_tiles_take_as_long_and_a_tile_more_what_the_next_size_takes():
    times = {100: 1.0, 300: 3.0}
    assert most_ms(times, 64, [50, 128, 129, 300, 321, 448]) == {
        50: 1.0, 128: 1.0, 129: 3.0, 300: 3.0, 321: pytest.approx(3.6), 448: pytest.approx(4.2),
    }  # fmt: skip
    assert least_ms(times, 64, 129) == pytest.approx(1.0)
    assert least_ms({}, 64, 129) == 0.0


@given(TILES, st.integers(1, 5000), st.integers(1, 3000))
def test_tiles_end_at_the_sizes_that_are_named(tile, below, more):
    found = list(ends(tile, below, below + more))
    assert len(found) <= 4
    for end in found:
        assert below <= end < below + more
        assert tiles(end + 1, tile) == tiles(end, tile) + 1
