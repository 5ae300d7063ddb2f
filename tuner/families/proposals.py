"""Configurations that are worth a measurement at a size, by what was measured at others and for other problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.device import DeviceModel
from tilewright.tuner.families.table import Measured
from tilewright.tuner.predict.predictor import Predictor, Record, enough
from tilewright.tuner.predict.shipped import joined, likest_first, nearest_of, shipped_series
from tilewright.tuner.predict.tiles import Tiles

Fits = Callable[[Configuration, int], bool]
"""Whether a configuration may be measured at a size."""

PROPOSED = 3
"""New configurations at each size."""


def shipped_records(kernel: Kernel, family: Family, model: DeviceModel) -> list[Record]:
    """What ships of the nearest problems, measured on GPUs of this compute capability."""
    like = family.exact(max(family.low, min(family.high, 1 << (family.high.bit_length() // 2))))
    series = likest_first(shipped_series(kernel, like), model.slug, model.limits)
    return nearest_of(kernel, like, joined(series, model.slug)) if series else []


class Proposals:
    """`others`: records of other problems."""

    def __init__(self, kernel: Kernel, family: Family, model: DeviceModel, others: Sequence[Record]) -> None:
        self._kernel, self._family, self._limits, self._others = kernel, family, model.limits, others
        self._tiles = Tiles(kernel)
        self._place = [name for name, _ in family.largest.axes].index(family.axis)

    def at(self, sizes: Sequence[int], measured: Measured, fits: Fits) -> Mapping[int, list[Configuration]]:
        """The configurations of the least expected times at each size, few, of those that fit it."""
        predictor = self._fitted(measured)
        if predictor is None:
            return {size: [] for size in sizes}
        return {
            size: predictor.ranked(self._family.exact(size), partial(_fits, fits, size), PROPOSED) for size in sizes
        }

    def snug(self, configuration: Configuration, size: int, fits: Fits) -> list[Configuration]:
        """The same with the least tiles along the open axis of which that size takes as many, or one fewer."""
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

    def _resized(self, configuration: Configuration) -> Iterator[Configuration]:
        """What differs in one parameter that changes the tile."""
        values = {p.name: p.values for p in self._kernel.variant(configuration.variant).parameters}
        tile, _ = self._extent(configuration)
        for name, value in configuration.items:
            changes = [
                Configuration.of(configuration.variant, {**configuration.values, name: other})
                for other in values.get(name, ())
                if other != value
            ]
            if changes and any(self._extent(one)[0] != tile for one in changes[:2]):
                yield from changes

    def _extent(self, configuration: Configuration) -> tuple[int, tuple[int, ...]]:
        """Of a tile along the open axis, and along the others."""
        extents = self._tiles.extents(self._family.largest, configuration)
        return extents[self._place], (*extents[: self._place], *extents[self._place + 1 :])

    def _fitted(self, measured: Measured) -> Predictor | None:
        by_size: dict[int, dict[Configuration, float]] = {}
        for configuration, of_one in measured.times.items():
            for size, time_ms in of_one.items():
                by_size.setdefault(size, {})[configuration] = time_ms
        failed = frozenset(measured.barred)
        own = [Record(self._family.exact(size), times, {}, failed) for size, times in sorted(by_size.items())]
        records = [*self._others, *own]
        return Predictor(self._kernel, self._limits, records) if enough(len(records)) else None


def _fits(fits: Fits, size: int, configuration: Configuration) -> bool:
    return fits(configuration, size)
