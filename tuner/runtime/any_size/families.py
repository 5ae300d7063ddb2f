"""Ranges of families for a runtime: of a table that was measured, else predicted at a few sizes, else the default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.any_size.ranges import Ranges, SizeRange, SizeTime, guessed_at, is_sound_within
from tilewright.tuner.runtime.any_size.shortage import within_limit
from tilewright.tuner.runtime.choice import Choice, TargetDevice, default_choice
from tilewright.tuner.runtime.errors import UntunedWarning, warn
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.memory.room import NoRoomError
from tilewright.tuner.runtime.words import family_words

Known = Callable[[Kernel, Problem, TargetDevice], Choice | None]
"""The known configuration of a problem on a device model, predicted or measured; None where there is none."""


USUAL_SIZES = (512, 2048, 128)
"""The sizes at which one configuration for all is predicted, if rows must not depend on their number."""


class InUse(NamedTuple):
    """A family that launchers have asked for, and its ranges."""

    kernel: Kernel
    family: Family
    ranges: Ranges


class Families:
    """The families of one runtime. `table`: the measured ranges of a family; None where there are none."""

    def __init__(
        self,
        known: Known,
        table: Callable[[Kernel, Family, TargetDevice], Ranges | None],
        first_use: Callable[[Kernel, Problem, TargetDevice, Choice], FirstUse | None],
        untuned: Callable[[Kernel, Family, TargetDevice], None],
        predict_ahead: Callable[[Kernel, Sequence[Problem], TargetDevice], None],
        *,
        only_tuned: bool = False,
    ) -> None:
        self._known, self._table, self._first_use, self._untuned = known, table, first_use, untuned
        self._predict_ahead = predict_ahead
        self._only_tuned = only_tuned
        self._kept: dict[tuple[str, str], InUse] = {}
        self._pinned: dict[tuple[str, str], Ranges] = {}
        self._lock = ForkSafeLock()

    def ranges(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges:
        """The configurations of the family on a device model; looked for once."""
        key = family.hash, place.slug
        kept = self._kept.get(key)
        if kept is not None:  # without the lock, under which others are predicted for seconds
            return kept.ranges
        with self._lock:
            if key not in self._kept:
                found = self._pinned.get(key) or self._table(kernel, family, place)
                found = within_limit(kernel, family, place, found or self._guessed(kernel, family, place))
                self._kept[key] = InUse(kernel, family, found)
            return self._kept[key].ranges

    def is_found(self, family: Family, place: TargetDevice) -> bool:
        """Whether `ranges` is quick: no service, no predictions."""
        key = family.hash, place.slug
        return key in self._kept or key in self._pinned

    def in_use(self, slug: str) -> list[InUse]:
        """The families that launchers have asked for on a device model, with their ranges."""
        with self._lock:
            return [one for (_, model), one in self._kept.items() if model == slug]

    @property
    def has_pinned(self) -> bool:
        """Whether `pin` has named ranges."""
        return bool(self._pinned)

    def pin(self, ranges: Mapping[Family, Ranges], slug: str) -> None:
        """Puts these ranges before every source, for launchers that are asked for later."""
        with self._lock:
            self._pinned |= {(family.hash, slug): one for family, one in ranges.items()}
            self._kept = {}

    def default(self, kernel: Kernel, family: Family, place: TargetDevice) -> Choice:
        """The kernel's default for every size; raises LaunchError."""
        usable = lambda choice: family.admits(kernel, choice.configuration)  # noqa: E731
        return default_choice(kernel, family.largest, place, is_usable=usable)

    def without_workspace(self, kernel: Kernel, family: Family, place: TargetDevice, error: NoRoomError) -> Choice:
        """A default without a workspace at any size; raises the given error if only tuned configurations may run.

        It does so too where a row's result must not depend on how many there are.
        """
        if self._only_tuned or family.batch_invariant:
            raise error
        choice = default_choice(kernel, family.largest, replace(place, most_workspace_bytes=0))
        warn(f"{error}. The default configuration of {family_words(kernel, family)} is used", UntunedWarning)
        return choice

    def first_use(self, kernel: Kernel, family: Family, place: TargetDevice, choice: Choice) -> FirstUse | None:
        """The check of that choice at its first launch; one check for all sizes."""
        return self._first_use(kernel, family.largest, place, choice)

    def forget(self) -> None:
        """Looks for ranges again when they are asked for."""
        with self._lock:
            self._kept = {}

    def _guessed(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges:
        """Predicted ranges, each with a configuration; a single one where rows must not depend on their number.

        A range whose own is not right at both its ends gets that of the nearest range that is, or else the default.
        """
        predicted = cache(partial(self._predicted, kernel, family, place))
        spans = guessed_at(family)
        sizes: Sequence[int] = tuple(spans)
        if family.batch_invariant:  # one order of sums for all sizes
            sizes, spans = USUAL_SIZES, {USUAL_SIZES[0]: (family.low, family.high)}
        else:
            unknown = [size for size in sizes if self._known(kernel, family.exact(size), place) is None]
            self._predict_ahead(kernel, [family.at(size) for size in unknown], place)

        def chosen(size: int, low: int, high: int) -> Choice | None:
            nearest = sorted(sizes, key=lambda other: abs(math.log(other / size)))
            found = (choice for other in nearest if (choice := predicted(other)) is not None)
            return next((one for one in found if is_sound_within(kernel, family, place, one, low, high)), None)

        of_ranges = {high: chosen(size, low, high) for size, (low, high) in spans.items()}
        if None in of_ranges.values():
            default = self.default(kernel, family, place)
            of_ranges = {high: choice or default for high, choice in of_ranges.items()}
            self._untuned(kernel, family, place)
        times = [] if family.batch_invariant else _times({size: predicted(size) for size in sizes})
        return Ranges([SizeRange(high, choice) for high, choice in of_ranges.items() if choice], times=times)

    def _predicted(self, kernel: Kernel, family: Family, place: TargetDevice, size: int) -> Choice | None:
        for problem in (family.exact(size), family.at(size)):
            choice = self._known(kernel, problem, place)
            if choice is not None and family.admits(kernel, choice.configuration):
                return choice
        return None


def _times(predicted: Mapping[int, Choice | None]) -> list[SizeTime]:
    """The expected times at the sizes for which there are any."""
    known = {size: choice for size, choice in predicted.items() if choice is not None}
    return [SizeTime(size, one.time_ms, one.library_ms) for size, one in sorted(known.items()) if one.time_ms]
