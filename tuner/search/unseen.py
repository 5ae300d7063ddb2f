"""The part of a search space that no trial has taken yet, held as arrays so that choosing from it is fast."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.space import Configuration, SearchSpace


class Unseen:
    """The feasible configurations that are still free. `take` removes one; nothing puts it back."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        self._space, self._rng = space, rng
        self.free = np.ones(len(space), dtype=bool)
        self._left = len(space)
        self._slices: dict[str, slice] = {}
        start = 0
        for variant, ranks in space.ranks.items():  # `feasible` lists one variant after the other, in this order
            self._slices[variant] = slice(start, start + len(ranks))
            start += len(ranks)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, configuration: object) -> bool:
        position = self._position(configuration)
        return position is not None and bool(self.free[position])

    def take(self, configuration: Configuration) -> None:
        """Removes it; a configuration outside the space is ignored."""
        position = self._position(configuration)
        if position is not None and self.free[position]:
            self.free[position] = False
            self._left -= 1

    def draw(self, variant: str | None = None) -> Configuration | None:
        """Any free configuration (of this variant), each as likely as the other; None when all are taken."""
        drawn = self.draws(1, variant)
        return self._space.feasible[int(drawn[0])] if len(drawn) else None

    def draws(self, count: int, variant: str | None = None) -> NDArray[np.intp]:
        """The places of at most `count` different free configurations, each as likely as the other."""
        place = slice(0, len(self.free)) if variant is None else self._slices[variant]
        free = place.start + np.flatnonzero(self.free[place])
        return (
            free if len(free) <= count and count > 1 else self._rng.choice(free, min(count, len(free)), replace=False)
        )

    def nearest(self, variant: str, ranks: Mapping[str, int]) -> Configuration | None:
        """The free configuration of this variant with the fewest steps from `ranks`, by chance among equals.

        `ranks` are places in each parameter's list of values. Falls back to any other variant's free configuration
        when this one has none left; None when all are taken.
        """
        place = self._slices[variant]
        free = np.flatnonzero(self.free[place])
        if not len(free):
            return self.draw()
        target = np.array([ranks[p.name] for p in self._space.variant(variant).parameters], dtype=np.int16)
        steps = np.abs(self._space.ranks[variant][free] - target).sum(axis=1)
        closest = free[steps == steps.min()]
        position: int = place.start + int(self._rng.choice(closest))
        return self._space.feasible[position]

    def _position(self, configuration: object) -> int | None:
        return self._space.feasible.position(configuration) if isinstance(configuration, Configuration) else None
