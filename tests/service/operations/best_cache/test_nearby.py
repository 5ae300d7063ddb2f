"""The nearest tuned shapes: the ranking of the whole list, piece by piece."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.service.operations.best.predictions import RememberedPredictions
from tilewright.service.operations.best.rows import TRIED, TunedShapes
from tilewright.service.operations.best_cache.nearby import NearbyRow, NearbyShapes

GEMM = catalogue().get("gemm")
LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=10**11)


def shapes(count: int, most: int, seed: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(seed).integers(1, most, (count, 3), endpoint=True)
    return [tuple(int(size) for size in row) for row in drawn]


@pytest.mark.parametrize(("count", "most"), [(1, 9), (20, 8192), (63, 4), (64, 3), (65, 2), (3000, 8192), (3000, 6)])
def test_the_order_is_that_of_the_whole_list(count, most):
    """Of few sizes many shapes are equally near, and their times and ids decide."""
    sizes = shapes(count, most, seed=count)
    times_ms = [float(1 + place % 7) for place in range(count)]
    rows = [NearbyRow(row_id, b"", time_ms) for row_id, time_ms in zip(range(count, 0, -1), times_ms, strict=True)]
    nearby = NearbyShapes.of(rows, sizes, RememberedPredictions(GEMM, LIMITS, 0, ()))
    tuned = TunedShapes(
        nearby.ids, np.log(np.array(sizes, dtype=np.float64)), np.zeros(count), np.array(times_ms, dtype=np.float64)
    )
    for asked in [*shapes(30, most, seed=1), *sizes[:5]]:
        problem = GEMM.problem(dict(zip(GEMM.axes, asked, strict=True)))
        found = [int(nearby.ids[place]) for place in nearby.nearest(asked)]
        assert found == tuned.nearest(problem, TRIED)
        assert found[:1] == [int(nearby.ids[place]) for place in islice(nearby.nearest(asked), 1)]


def test_where_nothing_is_left_nothing_is_near():
    def remembered(ids):
        return RememberedPredictions(GEMM, LIMITS, 0, ids)

    nearby = NearbyShapes.of([NearbyRow(1, b"", 1.0)], [(1, 2, 3)], remembered(())).changed({1}, [], [], remembered)
    assert list(nearby.nearest((1, 1, 1))) == []
    again = nearby.changed((), [NearbyRow(2, b"", 1.0)], [(4, 5, 6)], remembered)
    assert list(again.nearest((1, 1, 1))) == [0]
