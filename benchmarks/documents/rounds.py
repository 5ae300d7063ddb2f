"""Interleaved rounds: contestants take turns, so that what drifts meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")
Sample = TypeVar("Sample")


def in_turns(
    contestants: Mapping[str, T], count: int, sample: Callable[[T], Sample], warm_up: int = 1
) -> dict[str, list[Sample]]:
    """A sample a round of each contestant; each round begins with another one, and the first rounds are left out."""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(warm_up + count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(sample(contestants[name]))
    return {name: one[warm_up:] for name, one in samples.items()}
