"""Tuned shapes in memory, ranked by distance as best_rows.Tuned ranks them, and what was predicted from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.service.operations.best_rows import TRIED
from tilewright.service.operations.predictions import Remembered


@dataclass(frozen=True)
class Near:
    """One result: its row's id, its problem's key, its time."""

    row_id: int
    key: bytes
    time_ms: float


@dataclass(frozen=True)
class Nearby:
    """Results with the same dtype and options on one device model, the newest first."""

    ids: NDArray[np.int64]
    log_sizes: NDArray[np.float64]  # (axes, results)
    times_ms: NDArray[np.float64]
    keys: Sequence[bytes]
    predicted: Remembered

    @classmethod
    def of(cls, rows: Sequence[Near], sizes: Sequence[Sequence[int]], predicted: Remembered) -> Nearby:
        """Of rows with the sizes of their axes, the newest first and at most MAX_RANKED."""
        ids = np.array([row.row_id for row in rows], dtype=np.int64)
        log_sizes = np.log(np.array(sizes, dtype=np.float64).reshape(len(rows), -1)).T
        times_ms = np.array([row.time_ms for row in rows])
        return cls(ids, np.ascontiguousarray(log_sizes), times_ms, [row.key for row in rows], predicted)

    def with_row(self, row: Near, sizes: Sequence[int], predicted: Remembered) -> Nearby:
        """The same with this row too."""
        place = int(np.searchsorted(-self.ids, -row.row_id))
        return Nearby(
            np.insert(self.ids, place, row.row_id),
            np.insert(self.log_sizes, place, np.log(np.array(sizes, dtype=np.float64)), axis=1),
            np.insert(self.times_ms, place, row.time_ms),
            [*self.keys[:place], row.key, *self.keys[place:]],
            predicted,
        )

    def without_row(self, row_id: int, predicted: Remembered) -> Nearby:
        """The same without this row."""
        kept = self.ids != row_id
        keys = [key for key, is_kept in zip(self.keys, kept, strict=True) if is_kept]
        return Nearby(self.ids[kept], self.log_sizes[:, kept], self.times_ms[kept], keys, predicted)

    def nearest(self, sizes: Sequence[int]) -> Iterator[int]:
        """Places of the nearest, TRIED at most; those that most questions take are found in less time."""
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
