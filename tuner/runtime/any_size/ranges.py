"""The configuration that serves each size of an axis: a short array, searched by bisection."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.runtime.choice import Choice, TargetDevice, is_admitted
from tilewright.tuner.runtime.errors import LaunchError

GUESSED_AT = (16, 64, 128, 256, 512, 1024, 2048, 8192)
"""Sizes at which configurations are predicted where no table is known: at most so many modules are loaded."""

GUESSED_AT_FEW = (1, 4, 16, 64, 256)
"""The same for families of no larger sizes, such as those of few rows or of images: one alone is a usual size there."""


@dataclass(frozen=True)
class SizeRange:
    """Sizes up to `high`, from behind the range before it, and their configuration."""

    high: int
    choice: Choice


class SizeTime(NamedTuple):
    """The time at one size, measured or expected, of the configuration that serves it, and the library's."""

    size: int
    time_ms: float
    library_ms: float | None = None


class Ranges:
    """The ranges of one family in order; the last one also serves what is larger than its end.

    `times`: at some sizes, in order.
    """

    def __init__(self, ranges: Sequence[SizeRange], *, joins: bool = True, times: Sequence[SizeTime] = ()) -> None:
        self.ranges = tuple(_joined(ranges) if joins else ranges)
        self.times = tuple(times)
        self._ends = [one.high for one in self.ranges[:-1]]

    def number(self, size: int) -> int:
        """The number of the range that serves that size."""
        return bisect_left(self._ends, size)

    def choice(self, size: int) -> Choice:
        """The configuration that serves that size, with times at it, estimated between and beyond known ones."""
        choice = self.ranges[self.number(size)].choice
        if choice.match == "default" or not self.times:
            return choice
        time_ms = _between(size, [(one.size, one.time_ms) for one in self.times])
        library_ms = _between(size, [(one.size, one.library_ms) for one in self.times if one.library_ms is not None])
        is_faster = choice.library_faster
        if time_ms is not None and library_ms is not None and choice.library_name is None:
            is_faster = library_ms < time_ms
        return replace(choice, time_ms=time_ms, library_ms=library_ms, library_faster=is_faster)

    @property
    def end(self) -> int:
        """The largest size that they were made for."""
        return self.ranges[-1].high

    def __len__(self) -> int:
        return len(self.ranges)

    def replaced(self, number: int, choice: Choice) -> Ranges:
        """The ranges with another configuration in the given one."""
        changed = [replace(one, choice=choice) if i == number else one for i, one in enumerate(self.ranges)]
        return Ranges(changed, joins=False, times=self.times)


def _between(size: int, known: Sequence[tuple[int, float]]) -> float | None:
    """The time at that size: straight between two on logarithmic scales; past the last it grows as the size does."""
    if not known:
        return None
    sizes, times = zip(*known, strict=True)
    time_ms = float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))
    return float(time_ms * max(1.0, size / sizes[-1]))


def guessed_at(family: Family) -> dict[int, tuple[int, int]]:
    """The ends of each range, by the size at which its configuration is predicted.

    Ranges meet at the geometric means of their sizes.
    """
    usual = GUESSED_AT if family.high > GUESSED_AT_FEW[-1] else GUESSED_AT_FEW
    sizes = [size for size in usual if size <= family.high]
    ends = [*(isqrt(below * above) for below, above in pairwise(sizes)), max(family.high, sizes[-1])]
    starts = [family.low, *(end + 1 for end in ends[:-1])]
    return {size: (low, high) for size, low, high in zip(sizes, starts, ends, strict=True)}


def is_sound_within(kernel: Kernel, family: Family, place: TargetDevice, choice: Choice, low: int, high: int) -> bool:
    """Whether the configuration is right from `low` to `high`: what it takes of the device grows with the size."""
    return all(is_admitted(kernel, family.at(size), place, choice.configuration) for size in {low, high})


class Beyond:
    """The ranges that serve sizes beyond the end of the last one, each found once a size."""

    def __init__(self, kernel: Kernel, family: Family, place: TargetDevice) -> None:
        self._kernel, self._family, self._place = kernel, family, place
        self._numbers: dict[int, int] = {}

    def number(self, ranges: Ranges, size: int) -> int:
        """The last range whose configuration is right at that size, as a whole or in panels; raises LaunchError."""
        found = self._numbers.get(size)
        if found is None:
            found = next((i for i in reversed(range(len(ranges))) if self._is_right(ranges, i, size)), None)
            if found is None:
                reason = f"no configuration of its launcher, which is for up to {ranges.end}, is right there"
                raise LaunchError(f"{self._family.at(size)}: {reason}. Ask best(...) for {self._family.axis}={size}")
            self._numbers[size] = found
        return found

    def _is_right(self, ranges: Ranges, number: int, size: int) -> bool:
        one = ranges.ranges[number]
        if self._kernel.fault(self._family.exact(size)) is not None:
            return False
        most = self._kernel.variant(one.choice.configuration.variant).most_at_once
        if 0 < most <= one.high:
            return True
        return is_sound_within(self._kernel, self._family, self._place, one.choice, size, size)


def _joined(ranges: Sequence[SizeRange]) -> list[SizeRange]:
    """The ranges after joining neighbours that run the same."""
    joined: list[SizeRange] = []
    for one in ranges:
        if joined and _runs(joined[-1].choice) == _runs(one.choice):
            joined[-1] = replace(joined[-1], high=one.high)
        else:
            joined.append(one)
    return joined


def _runs(choice: Choice) -> tuple[Configuration, str | None]:
    return choice.configuration, choice.library_name
