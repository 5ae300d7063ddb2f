"""Tuned shapes in memory, ranked by distance as `best.rows.TunedShapes` ranks them, with predictions made from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilewright.service.operations.best.predictions import RememberedPredictions
from tilewright.service.operations.best.rows import MAX_RANKED, TRIED

DEFAULT = -1
KEPT_CHOICES = 4096
"""How many choices are kept for shapes far from all tuned ones: the row's place, or DEFAULT, by sizes."""


@dataclass(frozen=True)
class NearbyRow:
    """One result: its row's id, its problem's key, its time."""

    row_id: int
    key: bytes
    time_ms: float


@dataclass(frozen=True)
class NearbyShapes:
    """Results with the same dtype and options on one device model, the newest first."""

    ids: NDArray[np.int64]
    log_sizes: NDArray[np.float64]  # (axes, results)
    times_ms: NDArray[np.float64]
    keys: Sequence[bytes]
    predicted: RememberedPredictions
    chosen: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, rows: Sequence[NearbyRow], sizes: Sequence[Sequence[int]], predicted: RememberedPredictions
    ) -> NearbyShapes:
        """Of rows with the sizes of their axes, the newest first and at most MAX_RANKED."""
        ids = np.array([row.row_id for row in rows], dtype=np.int64)
        log_sizes = np.log(np.array(sizes, dtype=np.float64).reshape(len(rows), -1)).T
        times_ms = np.array([row.time_ms for row in rows])
        return cls(ids, np.ascontiguousarray(log_sizes), times_ms, [row.key for row in rows], predicted)

    def changed(
        self,
        gone: Collection[int],
        new: Sequence[NearbyRow],
        sizes: Sequence[Sequence[int]],
        remembered: Callable[[Iterable[int]], RememberedPredictions],
    ) -> NearbyShapes:
        """The same without the rows of these ids and with new ones of these sizes: the newest MAX_RANKED of them."""
        kept = np.flatnonzero(np.isin(self.ids, list(gone), invert=True))
        log_sizes = np.log(np.array(sizes, dtype=np.float64).reshape(len(new), len(self.log_sizes))).T
        ids = np.concatenate((self.ids[kept], np.array([row.row_id for row in new], dtype=np.int64)))
        order = np.argsort(-ids)[:MAX_RANKED]
        keys = [*(self.keys[place] for place in kept.tolist()), *(row.key for row in new)]
        return NearbyShapes(
            ids[order],
            np.ascontiguousarray(np.concatenate((self.log_sizes[:, kept], log_sizes), axis=1)[:, order]),
            np.concatenate((self.times_ms[kept], [row.time_ms for row in new]))[order],
            [keys[place] for place in order],
            remembered(ids[order]),
        )

    def nearest(self, sizes: Sequence[int]) -> Iterator[int]:
        """Places of at most TRIED nearest results, nearest first; the first few take less time to find."""
        if not self.keys:
            return
        distances = self._distances(sizes)
        least = distances[distances.argmin()]
        first = self._ranked(distances, np.flatnonzero(distances == least))[0]
        yield first
        nearer = self._ranked(distances, np.flatnonzero(distances <= 2 * least))[:TRIED]
        yield from (place for place in nearer if place != first)
        if len(nearer) < TRIED:
            farthest = np.partition(distances, TRIED - 1)[TRIED - 1] if len(distances) > TRIED else np.inf
            yield from self._ranked(distances, np.flatnonzero(distances <= farthest))[len(nearer) : TRIED]

    def keep_choice(self, sizes: Sequence[int], place: int) -> None:
        """Remembers which row was chosen for these sizes; DEFAULT: none, the kernel's default is used."""
        if len(self.chosen) >= KEPT_CHOICES:
            self.chosen.clear()
        self.chosen[tuple(sizes)] = place

    def _distances(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        asked = np.log(sizes)
        distances: NDArray[np.float64] = np.abs(self.log_sizes[0] - asked[0])
        part = np.empty_like(distances)  # one for all axes: twenty thousand numbers are new pages each time
        for known, size in zip(self.log_sizes[1:], asked[1:], strict=True):
            np.abs(np.subtract(known, size, out=part), out=part)
            distances += part
        return distances

    def _ranked(self, distances: NDArray[np.float64], places: NDArray[np.intp]) -> list[int]:
        if len(places) == 1:
            return [int(places[0])]
        order = np.lexsort((self.ids[places], self.times_ms[places], distances[places]))
        return [int(place) for place in places[order]]
