"""A tuned problem as predictions rest on it, and a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.tuner.predict.library import LibraryTime

FEWEST_SHAPES = 4
"""Tuned shapes below which nothing is predicted: leaving one out must leave some."""


def enough(shapes: int) -> bool:
    """Whether so many tuned shapes allow a prediction."""
    return shapes >= FEWEST_SHAPES


@dataclass(frozen=True)
class Record:
    """A tuned problem: the measured time of each configuration in ms, and registers where a compiler reported them.

    `failed`: what did not compile, crashed, hung or computed a wrong result.
    """

    problem: Problem
    times_ms: Mapping[Configuration, float]
    registers: Mapping[Configuration, int]
    failed: frozenset[Configuration] = frozenset()
    origin: str | None = None  # the installation that measured it, where that is another
    library: LibraryTime | None = None  # where it was timed
    shipped: str | None = None  # what it is, where it came with the package

    @cached_property
    def ranked(self) -> tuple[Configuration, ...]:
        """Configurations, the fastest first."""
        return tuple(sorted(self.times_ms, key=lambda c: (self.times_ms[c], c)))

    @cached_property
    def leaders(self) -> tuple[Configuration, ...]:
        """The fastest of each variant, the fastest first."""
        by_variant: dict[str, Configuration] = {}
        for one in self.ranked:
            by_variant.setdefault(one.variant, one)
        return tuple(by_variant.values())

    @property
    def best_ms(self) -> float:
        """The time of the fastest."""
        return self.times_ms[self.ranked[0]]

    def sample(self, count: int) -> list[Configuration]:
        """At most `count` configurations: the faster half of them, then others at even steps."""
        if len(self.ranked) <= count:
            return list(self.ranked)
        fast, rest = self.ranked[: count // 2], self.ranked[count // 2 :]
        return [*fast, *(rest[i * len(rest) // (count - len(fast))] for i in range(count - len(fast)))]


@dataclass(frozen=True)
class Prediction:
    """A configuration for an untuned problem. `expected_loss`: its expected time over the best one's, minus 1.

    `time_ms` is never that of a higher rate than some tuned problem's best.
    """

    configuration: Configuration
    time_ms: float
    expected_loss: float
    near: Problem  # the nearest tuned problem for which it was measured, of all where it was for none
    origins: tuple[str, ...] = ()  # other installations that measured some of what it rests on
    shipped: tuple[str, ...] = ()  # what came with the package, of what it rests on
    library: LibraryTime | None = None  # expected, where it was timed for enough of the tuned problems
    is_library_faster: bool = False  # expected so, and hardly a shape near it where a search gained on the library
