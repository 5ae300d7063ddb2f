"""Sizes of an axis that stand for all of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from math import isqrt

from tilewright.kernels.space import Configuration

FIRST = 12
"""Sizes that are searched at first."""

MOST = 20
"""Sizes that are measured at most, with those between neighbours whose best configurations differ."""

NEAREST = 1.25
"""Neighbours that are closer than this, one over the other, get no size between them."""


def spread(low: int, high: int, count: int = FIRST) -> list[int]:
    """At most `count` sizes from `low` to `high`, both among them, evenly by their logarithms.

    With `low` 1 and `high` a power of two most of them are powers of two, where whole tiles end.
    """
    if low == high:
        return [low]
    ratio = high / low
    sizes = {round(low * ratio ** (step / (count - 1))) for step in range(count)}
    return sorted({min(high, max(low, _whole(size))) for size in sizes} | {low, high})


def between(best: Sequence[tuple[int, Configuration]], most: int) -> list[int]:
    """At most `most` further sizes, each between two neighbours whose best configurations differ, the widest gap first.

    `best`: sizes in order, with the best configuration of each.
    """
    gaps = [(above / below, isqrt(below * above)) for (below, one), (above, other) in pairwise(best) if one != other]
    wide = sorted((gap for gap in gaps if gap[0] > NEAREST), reverse=True)
    known = {size for size, _ in best}
    return sorted({size for _, size in wide[:most]} - known)


def behind(best: Sequence[tuple[int, Configuration]]) -> list[int]:
    """The sizes one larger than those whose next neighbour has another best configuration.

    Whole tiles tend to end at a size that was searched; behind it the same configuration needs one more of them.
    """
    known = {size for size, _ in best}
    return sorted({below + 1 for (below, one), (_, other) in pairwise(best) if one != other} - known)


def inside(low: int, high: int, count: int, seed: int) -> list[int]:
    """Both ends of a range, and `count` random sizes between them."""
    generator = random.Random(f"{seed} {low} {high}")
    return sorted({low, high, *(generator.randint(low, high) for _ in range(count))})


def _whole(size: int) -> int:
    """A power of two where one is near: there whole tiles end, which is where a neighbour's tile begins to pay."""
    power = 1 << (size.bit_length() - 1)
    near = min((power, 2 * power), key=lambda one: abs(one - size))
    return near if abs(near - size) * 4 <= size else size
