"""Tuned shapes in memory, ranked by distance as best_rows.Tuned ranks them, and what was predicted from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.problem import Problem
from tilewright.service.operations.best_rows import MAX_RANKED, TRIED
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

    def changed(self, gone: int | None, new: Near | None, sizes: Sequence[int], predicted: Remembered) -> Nearby | None:
        """The same without the row of that id and with the new one; None where all must be looked at again."""
        ids, log_sizes, times_ms, keys = self.ids, self.log_sizes, self.times_ms, self.keys
        if len(ids) >= MAX_RANKED:
            return None
        if gone is not None:
            places = np.flatnonzero(ids == gone)
            ids, times_ms = np.delete(ids, places), np.delete(times_ms, places)
            log_sizes = np.delete(log_sizes, places, axis=1)
            keys = [key for place, key in enumerate(keys) if place not in set(places.tolist())]
        if new is not None:
            place = int(np.searchsorted(-ids, -new.row_id))
            ids = np.insert(ids, place, new.row_id)
            times_ms = np.insert(times_ms, place, new.time_ms)
            log_sizes = np.insert(log_sizes, place, np.log(np.array(sizes, dtype=np.float64)), axis=1)
            keys = [*keys[:place], new.key, *keys[place:]]
        return Nearby(ids, log_sizes, times_ms, keys, predicted)

    def nearest(self, problem: Problem) -> Iterator[int]:
        """Places of the nearest, TRIED at most; the first, which most questions take, is found in less time."""
        if not self.keys:
            return
        distances = np.zeros(len(self.ids))
        for sizes, (_, size) in zip(self.log_sizes, problem.axes, strict=True):
            distances += np.abs(sizes - np.log(size))
        first = self._ranked(distances, np.flatnonzero(distances == distances.min()))[0]
        yield first
        farthest = np.partition(distances, TRIED - 1)[TRIED - 1] if len(distances) > TRIED else np.inf
        ranked = self._ranked(distances, np.flatnonzero(distances <= farthest))[:TRIED]
        yield from (place for place in ranked if place != first)

    def _ranked(self, distances: NDArray[np.float64], places: NDArray[np.intp]) -> list[int]:
        order = np.lexsort((self.ids[places], self.times_ms[places], distances[places]))
        return [int(place) for place in places[order]]
