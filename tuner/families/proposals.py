"""Configurations that are worth a measurement at a size, by what was measured at others and for other problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.families.table import Measured
from tilewright.tuner.predict.predictor import Predictor
from tilewright.tuner.predict.record import Record, enough
from tilewright.tuner.predict.shipped import joined, likest_first, nearest_of, shipped_series
from tilewright.tuner.predict.tiles import Tiles

MOST_RANKED = 200
"""Of the configurations that are looked at for a size."""

Fits = Callable[[Configuration, int], bool]
"""Whether a configuration may be measured at a size."""

PROPOSED, RESHAPED = 3, 2
"""New configurations at each of the first sizes, and at each between them: those with tiles of another width."""


def shipped_records(kernel: Kernel, family: Family, model: DeviceModel) -> list[Record]:
    """The shipped records of the nearest problems, measured on GPUs of this compute capability."""
    like = family.exact(max(family.low, min(family.high, 1 << (family.high.bit_length() // 2))))
    series = likest_first(shipped_series(kernel, like), model.slug, model.limits)
    return nearest_of(kernel, like, joined(series, model.slug)) if series else []


class Proposals:
    """Configurations that records and measurements promise. `others`: records of other problems."""

    def __init__(self, kernel: Kernel, family: Family, model: DeviceModel, others: Sequence[Record]) -> None:
        self._kernel, self._family, self._limits, self._others = kernel, family, model.limits, others
        self._tiles = Tiles(kernel)
        self._predictor = _fitted(kernel, model.limits, others, self._tiles)
        self._place = [name for name, _ in family.largest.axes].index(family.axis)
        self._changed: dict[tuple[Configuration, bool], list[Configuration]] = {}
        self._resizing: dict[tuple[str, str], tuple[bool, bool]] = {}  # see `_resizes`

    def learn(self, measured: Measured) -> None:
        """Fits to what is measured so far."""
        by_size: dict[int, dict[Configuration, float]] = {}
        for configuration, of_one in measured.times.items():
            for size, time_ms in of_one.items():
                by_size.setdefault(size, {})[configuration] = time_ms
        failed = frozenset(measured.barred)
        own = [Record(self._family.exact(size), times, {}, failed) for size, times in sorted(by_size.items())]
        self._predictor = _fitted(self._kernel, self._limits, [*self._others, *own], self._tiles)

    def at(self, size: int, fits: Fits, count: int = PROPOSED) -> list[Configuration]:
        """The configurations of the least expected times at that size, of those that fit it; none before `learn`.

        The best of another variant comes third at the latest: what is expected of two is less sure than of one.
        """
        if self._predictor is None:
            return []
        ranked = self._predictor.ranked(self._family.exact(size), lambda one: fits(one, size), MOST_RANKED)
        others = [one for one in ranked[2:] if one.variant not in {first.variant for first in ranked[:2]}]
        return list(dict.fromkeys([*ranked[:2], *others[:1], *ranked]))[:count]

    def best_of(self, size: int, known: Sequence[Configuration], fits: Fits) -> list[Configuration]:
        """Those of the least expected times at that size among some."""
        if self._predictor is None:
            return []
        fitting = [one for one in known if fits(one, size)]
        return self._predictor.best_of(self._family.exact(size), fitting, PROPOSED)

    def shaped(self, like: Sequence[Configuration], size: int, fits: Fits) -> list[Configuration]:
        """Configurations like these whose tiles fit the size: each as it is, and the best of other widths."""
        own = dict.fromkeys(one for each in like for one in self.snug(each, size, fits))
        if self._predictor is None:
            return list(own)
        others = dict.fromkeys(
            one
            for each in like
            for other in self._resized(each, along=False)
            for one in ([other] if fits(other, size) else []) + self.snug(other, size, fits)
            if one not in own
        )
        return [*own, *self._predictor.best_of(self._family.exact(size), list(others), RESHAPED)]

    def snug(self, configuration: Configuration, size: int, fits: Fits) -> list[Configuration]:
        """The same with the smallest tiles along the open axis that cover the size with as many tiles, or one fewer."""
        tile, rest = self._extent(configuration)
        count = -(-size // tile) if tile else 0
        least: dict[int, tuple[int, Configuration]] = {}
        for one in self._resized(configuration):
            other, other_rest = self._extent(one)
            tiles = -(-size // other) if other else 0
            is_less = other < least.get(tiles, (tile if tiles == count else other + 1,))[0]
            if other_rest == rest and tiles in {count, count - 1} and tiles and is_less and fits(one, size):
                least[tiles] = other, one
        return [one for _, one in least.values()]

    def tile(self, configuration: Configuration) -> int:
        """The size of its tiles along the open axis; 0 where it does not divide that."""
        return self._extent(configuration)[0]

    def _resized(self, configuration: Configuration, *, along: bool = True) -> list[Configuration]:
        """What differs in one parameter that changes the tile along the open axis, or along the others."""
        key = configuration, along
        if key not in self._changed:
            self._changed[key] = list(self._changes(configuration, along=along))
        return self._changed[key]

    def _changes(self, configuration: Configuration, *, along: bool) -> Iterator[Configuration]:
        values = {p.name: p.values for p in self._kernel.variant(configuration.variant).parameters}
        for name, value in configuration.items:
            others = [other for other in values.get(name, ()) if other != value]
            if others and self._resizes(configuration, name, others[:2], along=along):
                for other in others:
                    yield Configuration.of(configuration.variant, {**configuration.values, name: other})

    def _resizes(self, configuration: Configuration, name: str, others: Sequence[int], *, along: bool) -> bool:
        """Whether that parameter of the variant changes the tile; decided by the first configuration asked about."""
        key = configuration.variant, name
        if key not in self._resizing:
            tile, rest = self._extent(configuration)
            changed = [Configuration.of(key[0], {**configuration.values, name: other}) for other in others]
            extents = [self._extent(one) for one in changed]
            self._resizing[key] = any(one[0] != tile for one in extents), any(one[1] != rest for one in extents)
        return self._resizing[key][not along]

    def _extent(self, configuration: Configuration) -> tuple[int, tuple[int, ...]]:
        """Sizes of a tile along the open axis, and along the others."""
        extents = self._tiles.extents(self._family.largest, configuration)
        return extents[self._place], (*extents[: self._place], *extents[self._place + 1 :])


def _fitted(kernel: Kernel, limits: Limits, records: Sequence[Record], tiles: Tiles | None) -> Predictor | None:
    return Predictor(kernel, limits, records, tiles=tiles) if enough(len(records)) else None
