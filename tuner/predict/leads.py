"""The lead of ours over the library at tuned shapes, and the lead to expect near them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OCTAVES = 2.0
"""Distance in powers of two over which what one shape tells of another falls to a third."""

GAIN = 1.1
"""How many times as fast as the library the best of a search must be to have gained something."""

MOST_GAINS = 0.1
"""A problem is left to the library only where fewer of the shapes near it have such a gain, by their weights."""


@dataclass(frozen=True)
class Leads:
    """Logarithms of the library's time over ours at tuned shapes; `places`: those where the library was timed.

    `chosen`: over the time of what the other shapes predict; `best`: over that of the best.
    """

    places: NDArray[np.intp]
    chosen: Array
    best: Array

    @classmethod
    def of(cls, library_ms: Array, best_ms: Array, losses: Array) -> Leads:
        """The leads at shapes with these times; `library_ms` is NaN where the library was not timed.

        `losses`: of each shape's predicted configuration, its time over the best one's, minus 1.
        """
        places = np.flatnonzero(~np.isnan(library_ms))
        best = np.log(library_ms[places] / best_ms[places])
        return cls(places, best - np.log1p(losses[places]), best)

    def near(self, distances: Array) -> float:
        """The expected lead at a shape, from its distances to the tuned ones."""
        return mean_near(self.chosen, distances[self.places])

    def near_left_out(self, distances: list[Array]) -> Array:
        """The expected lead at each of these shapes by the others, from the distances of each to all tuned ones."""
        return np.array(
            [
                mean_near(np.delete(self.chosen, i), np.delete(of_one[self.places], i))
                for i, of_one in enumerate(distances)
            ]
        )

    def may_gain(self, distances: Array) -> bool:
        """Whether a search gained on the library at more than a few of the shapes near."""
        return mean_near(self.best >= math.log(GAIN), distances[self.places]) > MOST_GAINS


def mean_near(values: NDArray[np.float64 | np.bool_], distances: Array) -> float:
    """The mean of values at tuned shapes, in which near ones count more."""
    return float(np.average(values, weights=np.exp((distances.min() - distances) / OCTAVES)))
