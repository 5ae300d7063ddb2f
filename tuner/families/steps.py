"""The time of a configuration at sizes where it was not measured: it grows where one more tile begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

MOST_ENDS = 2
"""Ends of tiles behind the smaller of two measured sizes, and before the larger, at which ranges may meet."""


def tiles(size: int, tile: int) -> int:
    """How many tiles such a size is divided into; the size itself where it is not (`tile` 0)."""
    return -(-size // tile) if tile else size


def least_ms(times: Mapping[int, float], tile: int, size: int) -> float:
    """The time that it takes there at least, by those at other sizes: more tiles never take less.

    Fewer take half of their share: the last round of tiles on the device may have been all but empty.
    """
    here = tiles(size, tile)
    shares = ((time_ms, here / tiles(other, tile)) for other, time_ms in times.items())
    return max((time_ms * (1.0 if share >= 1 else share / 2) for time_ms, share in shares), default=0.0)


def most_ms(times: Mapping[int, float], tile: int, sizes: Iterable[int]) -> dict[int, float]:
    """The time that it takes at these at most, by those at the next sizes: fewer tiles take no longer.

    Beyond the largest of these, what so many tiles take on the average.
    """
    known, found = sorted(times), {}
    for size in sizes:
        place, here = bisect_left(known, size), tiles(size, tile)
        if place and (here == (fewer := tiles(known[place - 1], tile)) or place == len(known)):
            found[size] = times[known[place - 1]] * here / fewer
        else:
            found[size] = times[known[place]]
    return found


def ends(tile: int, below: int, above: int) -> Iterator[int]:
    """Sizes from `below` to `above`, without that, at which tiles end: the first ones and the last ones."""
    if tile:
        first, last = tiles(below, tile), (above - 1) // tile
        found = {*range(first, first + MOST_ENDS), *range(last - MOST_ENDS + 1, last + 1)}
        yield from (number * tile for number in found if below <= number * tile < above)
