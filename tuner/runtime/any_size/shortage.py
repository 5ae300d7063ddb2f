"""What serves sizes where there is no room for the workspace of their own configuration."""

from __future__ import annotations

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.tuner.runtime.any_size.ranges import Ranges, is_sound_within
from tilewright.tuner.runtime.choice import Choice, TargetDevice


def within_limit(kernel: Kernel, family: Family, place: TargetDevice, ranges: Ranges) -> Ranges:
    """The ranges, of which those beyond the limit of the setting have the configuration of the nearest one within it.

    One that has no other stays, and has no room when it is launched.
    """
    if place.most_workspace_bytes is None or family.batch_invariant:
        return ranges
    changed, low = ranges, 1
    for number, one in enumerate(ranges.ranges):
        ends, low = (low, one.high), one.high + 1
        others = (ranges.ranges[other].choice for other in _nearest_first(ranges, number))
        fits = (choice for choice in others if is_sound_within(kernel, family, place, choice, *ends))
        changed = changed.replaced(number, next(fits, one.choice))
    return changed


def in_less(kernel: Kernel, family: Family, place: TargetDevice, ranges: Ranges, size: int) -> list[int]:
    """The numbers of other ranges whose configurations take less memory at that size, the nearest first.

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
