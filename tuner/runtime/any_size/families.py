"""Ranges of families for a runtime: of a table that was measured, else predicted at a few sizes, else the default."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.tuner.runtime.any_size.ranges import Ranges, guessed, is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice, default_choice
from tilewright.tuner.runtime.first_use.first_use import FirstUse
from tilewright.tuner.runtime.forks import ForkSafeLock

Known = Callable[[Kernel, Problem, TargetDevice], Choice | None]
"""What is known of one problem on a device model, predicted or measured; None for nothing."""


class Families:
    """The families of one runtime. `table`: the measured ranges of a family; None where there are none."""

    def __init__(
        self,
        known: Known,
        table: Callable[[Kernel, Family, TargetDevice], Ranges | None],
        first_use: Callable[[Kernel, Problem, TargetDevice, Choice], FirstUse | None],
        untuned: Callable[[Kernel, Family, TargetDevice], None],
    ) -> None:
        self._known, self._table, self._first_use, self._untuned = known, table, first_use, untuned
        self._kept: dict[tuple[str, str], Ranges] = {}
        self._lock = ForkSafeLock()

    def ranges(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges:
        """The configurations of the family on a device model; looked for once."""
        key = family.hash, place.slug
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._table(kernel, family, place) or self._guessed(kernel, family, place)
            return self._kept[key]

    def default(self, kernel: Kernel, family: Family, place: TargetDevice) -> Choice:
        """The kernel's default for every size; raises LaunchError."""
        return default_choice(kernel, family.largest, place)

    def first_use(self, kernel: Kernel, family: Family, place: TargetDevice, choice: Choice) -> FirstUse | None:
        """What is to be checked of that choice when it is launched first; one check for all sizes."""
        return self._first_use(kernel, family.largest, place, choice)

    def forget(self) -> None:
        """Looks for ranges again when they are asked for."""
        with self._lock:
            self._kept = {}

    def _guessed(self, kernel: Kernel, family: Family, place: TargetDevice) -> Ranges:
        default: list[Choice] = []

        def choose(size: int) -> Choice:
            for problem in (family.at(size), family.exact(size)):
                choice = self._known(kernel, problem, place)
                if choice is not None and is_sound_within(
                    kernel, family, place.limits, choice, family.low, family.high
                ):
                    return choice
            if not default:
                default.append(self.default(kernel, family, place))
            return default[0]

        ranges = guessed(family, choose)
        if default:
            self._untuned(kernel, family, place)
        return ranges
