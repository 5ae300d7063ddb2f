"""The part of a search space that no trial has taken yet, held as arrays so that snapping is fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.kernels.space import Configuration, SearchSpace


class Unseen:
    """The feasible configurations that are still free. `take` removes one; nothing puts it back."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        self._space, self._rng = space, rng
        self._free = np.ones(len(space), dtype=bool)
        self._slices: dict[str, slice] = {}
        self._ranks: dict[str, np.ndarray] = {}
        start = 0
        for variant in space.spaces:  # `feasible` lists one variant after the other, in this order
            rank_of = [{value: i for i, value in enumerate(p.values)} for p in variant.parameters]
            names = [p.name for p in variant.parameters]
            rows = []
            for configuration in space.feasible[start:]:
                if configuration.variant != variant.variant:
                    break
                values = configuration.values
                rows.append([rank[values[name]] for rank, name in zip(rank_of, names, strict=True)])
            self._slices[variant.variant] = slice(start, start + len(rows))
            self._ranks[variant.variant] = np.array(rows, dtype=np.int16).reshape(len(rows), len(names))
            start += len(rows)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._free))

    def __contains__(self, configuration: object) -> bool:
        position = self._position(configuration)
        return position is not None and bool(self._free[position])

    def take(self, configuration: Configuration) -> None:
        """Removes it; a configuration outside the space is no matter."""
        position = self._position(configuration)
        if position is not None:
            self._free[position] = False

    def take_all(self, configurations: Iterable[Configuration]) -> None:
        """Removes each of them."""
        for configuration in configurations:
            self.take(configuration)

    def draw(self, variant: str | None = None) -> Configuration | None:
        """Any free configuration (of this variant), each as likely as the other; None when all are taken."""
        place = slice(0, len(self._free)) if variant is None else self._slices[variant]
        free = np.flatnonzero(self._free[place])
        return self._space.feasible[place.start + int(self._rng.choice(free))] if len(free) else None

    def nearest(self, variant: str, ranks: Mapping[str, int]) -> Configuration | None:
        """The free configuration of this variant with the fewest steps from `ranks`, by chance among equals.

        `ranks` are places in each parameter's list of values. Falls back to any other variant's free configuration
        when this one has none left; None when all are taken.
        """
        place = self._slices[variant]
        free = np.flatnonzero(self._free[place])
        if not len(free):
            return self.draw()
        wanted = np.array([ranks[p.name] for p in self._space.variant(variant).parameters], dtype=np.int16)
        steps = np.abs(self._ranks[variant][free] - wanted).sum(axis=1)
        closest = free[steps == steps.min()]
        position: int = place.start + int(self._rng.choice(closest))
        return self._space.feasible[position]

    def _position(self, configuration: object) -> int | None:
        return self._space.positions.get(configuration) if isinstance(configuration, Configuration) else None
