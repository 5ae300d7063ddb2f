"""Sizes of an axis that stand for all of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import isqrt

FIRST = 12
"""Sizes that are searched at first."""

MOST_EACH = 4
"""Sizes that are measured at most for each of the first ones."""

GROWTH = 1.08
"""Neighbours between which the best time grows by more get a size between them: with that configuration of the larger
one which serves all sizes between, this is the most that a size can lose, as times grow with the size."""

NEAREST = 1.02
"""Neighbours that are closer than this, one over the other, get no size between them."""

TILE = 8
"""Tiles of matrix instructions have a multiple of so many rows: where a range may well end."""

WIDE = 1.5
"""A range is verified at RANDOM_SIZES between its ends where these are so far apart, else at one."""

RANDOM_SIZES = 2


def spread(low: int, high: int, count: int = FIRST) -> list[int]:
    """At most `count` sizes from `low` to `high`, both among them, evenly by their logarithms.

    With `low` 1 and `high` a power of two most of them are powers of two, where whole tiles end.
    """
    if low == high:
        return [low]
    ratio = high / low
    sizes = {round(low * ratio ** (step / (count - 1))) for step in range(count)}
    return sorted({min(high, max(low, _whole(size))) for size in sizes} | {low, high})


def between(best_ms: Sequence[tuple[int, float]], most: int) -> list[int]:
    """At most `most` further sizes between neighbours whose best times differ much, those first that most do.

    `best_ms`: sizes in order, with the best time of each. Half the growth is expected on each side of a new size, so
    that several come between two at once: each round of measurements waits for its compilations.
    """
    gaps = [(-above_ms / below_ms, below, above) for (below, below_ms), (above, above_ms) in pairwise(best_ms)]
    heapify(gaps)
    found = list[int]()
    while gaps and len(found) < most and -gaps[0][0] > GROWTH:
        growth, below, above = heappop(gaps)
        size = middle(below, above)
        if size is not None:
            found.append(size)
            half = -math.sqrt(-growth)
            heappush(gaps, (half, below, size))
            heappush(gaps, (half, size, above))
    return sorted(found)


def inside(low: int, high: int, seed: int) -> list[int]:
    """Both ends of a range, and random sizes between them."""
    generator = random.Random(f"{seed} {low} {high}")
    count = RANDOM_SIZES if high > WIDE * low else 1
    return sorted({low, high, *(generator.randint(low, high) for _ in range(count))})


def middle(below: int, above: int) -> int | None:
    """The multiple of TILE nearest to the geometric mean if it lies between the two sizes, else the mean rounded down.

    None where the two are so close that no size between them is worth a measurement.
    """
    if above <= below * NEAREST or above <= below + 1:
        return None
    size = isqrt(below * above)
    whole = (size + TILE // 2) // TILE * TILE
    return whole if below < whole < above else max(below + 1, size)


def _whole(size: int) -> int:
    """A power of two near the number, if any: tiles fill it, and a neighbour's tile begins to pay there."""
    power = 1 << (size.bit_length() - 1)
    near = min((power, 2 * power), key=lambda one: abs(one - size))
    return near if abs(near - size) * 4 <= size else size
