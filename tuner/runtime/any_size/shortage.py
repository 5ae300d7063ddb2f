"""Replacements for configurations whose workspace has no room, size by size."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.forks import ForkSafeLock
from tilewright.tuner.runtime.any_size.ranges import Beyond, Ranges, is_sound_within
from tilewright.tuner.runtime.any_size.source import RangeSource
from tilewright.tuner.runtime.any_size.words import SizedCall
from tilewright.tuner.runtime.choice import Choice, TargetDevice
from tilewright.tuner.runtime.memory.room import NoRoomError

Loaded = TypeVar("Loaded")


class RangeLaunches(Generic[Loaded]):
    """Launches of one family: each size by its range's configuration, or by another whose workspace has room.

    `_kernels`: by range, what is loaded so far.
    """

    def __init__(self, kernel: Kernel, family: Family, source: RangeSource, place: TargetDevice) -> None:
        self._kernel, self._family, self._source, self.place = kernel, family, source, place
        self.ranges: Ranges = source.ranges(kernel, family, place)
        self._beyond = Beyond(kernel, family, place)
        self._kernels: list[Loaded | None] = [None] * len(self.ranges)
        self._lock = ForkSafeLock()

    def has_loaded(self, number: int) -> bool:
        """Whether that range's configuration is loaded."""
        return self._kernels[number] is not None

    def launch_range(self, number: int, call: SizedCall) -> None:
        """One launch of that range's configuration; raises NoRoomError."""
        raise NotImplementedError

    def launch_size(self, call: SizedCall) -> None:
        """Launches once at that size."""
        ranges = self.ranges
        number = ranges.number(call.size) if call.size <= ranges.end else self._beyond.number(ranges, call.size)
        try:
            self.launch_range(number, call)
        except NoRoomError as error:
            self._launch_in_less(number, call, error)

    def _launch_in_less(self, number: int, call: SizedCall, error: NoRoomError) -> None:
        """Launches another range's configuration, or from now on the default in place of this range's."""
        for other in in_less(self._kernel, self._family, self.place, self.ranges, call.size):
            with suppress(NoRoomError):
                return self.launch_range(other, call)
        choice = self._source.without_workspace(self._kernel, self._family, self.place, error)
        with self._lock:
            self.ranges, self._kernels[number] = self.ranges.replaced(number, choice), None
        return self.launch_range(number, call)


def within_limit(kernel: Kernel, family: Family, place: TargetDevice, ranges: Ranges) -> Ranges:
    """The ranges, but beyond the setting's limit the configurations of the nearest range within it.

    One that has no other stays, and has no room when it is launched.
    """
    if place.most_workspace_bytes is None or family.batch_invariant:
        return ranges
    changed, low = ranges, 1
    for number, one in enumerate(ranges.ranges):
        ends, low = (low, one.high), one.high + 1
        others = (ranges.ranges[other].choice for other in _nearest_first(ranges, number))
        fits = (choice for choice in others if is_sound_within(kernel, family, place, choice, *ends))
        kept, library = next(fits, one.choice), one.choice
        changed = changed.replaced(
            number, replace(kept, library_faster=library.library_faster, library_name=library.library_name)
        )
    return changed


def in_less(kernel: Kernel, family: Family, place: TargetDevice, ranges: Ranges, size: int) -> list[int]:
    """The numbers of ranges whose configurations take less memory at that size, the nearest first.

    None where a row's result must not depend on how many there are: another configuration adds up in another order.
    """
    if family.batch_invariant:
        return []
    own, problem = ranges.number(size), family.at(size)

    def needed(choice: Choice) -> int:
        configuration = choice.configuration
        return kernel.variant(configuration.variant).workspace_at_once(configuration.values, problem)

    choices = [one.choice for one in ranges.ranges]
    less = [number for number in _nearest_first(ranges, own) if needed(choices[number]) < needed(choices[own])]
    return [number for number in less if is_sound_within(kernel, family, place, choices[number], size, size)]


def _nearest_first(ranges: Ranges, number: int) -> list[int]:
    return sorted(range(len(ranges)), key=lambda other: abs(other - number))
