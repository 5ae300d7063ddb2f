"""The feasible configurations of a space as arrays; Configuration objects are made when they are asked for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import overload

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.enumeration.configuration import Configuration

ANOTHER_VARIANT = 1_000_000
"""Steps to a configuration of another variant: more than any within one."""


@dataclass(frozen=True, eq=False)
class Part:
    """The feasible configurations of one variant: `ranks` are places in each parameter's values, a row a point.

    Rows are in ascending order, and each column lies in one piece.
    """

    variant: str
    domains: Mapping[str, tuple[int, ...]]
    ranks: NDArray[np.int16]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", np.asfortranarray(self.ranks))

    def __len__(self) -> int:
        return len(self.ranks)

    def configurations(self, start: int, stop: int) -> Iterator[Configuration]:
        """The configurations of the rows from `start` to before `stop`."""
        by_name = sorted(enumerate(self.domains.items()), key=lambda place: place[1][0])
        columns = [
            [(name, values[rank]) for rank in self.ranks[start:stop, place].tolist()]
            for place, (name, values) in by_name
        ]
        items = zip(*columns, strict=True) if columns else iter([()] * len(self.ranks[start:stop]))
        return (Configuration(self.variant, row) for row in items)

    def row(self, configuration: Configuration) -> int | None:
        """The row of this configuration, or None where it is not feasible."""
        if configuration.variant != self.variant or len(configuration.items) != len(self.domains):
            return None
        values, low, high = dict(configuration.items), 0, len(self.ranks)
        for column, (name, ranks) in zip(self._columns, self._rank_of.items(), strict=True):
            rank = ranks.get(values.get(name))
            if rank is None:
                return None
            low = bisect_left(column, rank, low, high)
            high = bisect_right(column, rank, low, high)
            if low == high:
                return None
        return low if low < high else None

    @cached_property
    def _columns(self) -> list[memoryview]:
        """The columns of `ranks`; a bisection reads a dozen numbers, each in a fifth of the time that an array would
        take.
        """
        return [self.ranks[:, place].data for place in range(len(self.domains))]

    @cached_property
    def _rank_of(self) -> dict[str, dict[int | None, int]]:
        return {name: {value: rank for rank, value in enumerate(values)} for name, values in self.domains.items()}

    def distances(self, wanted: Configuration) -> NDArray[np.int64]:
        """Steps along the parameters' lists from `wanted` to each row; one not listed counts as the first."""
        if wanted.variant != self.variant:
            return np.full(len(self.ranks), ANOTHER_VARIANT, dtype=np.int64)
        steps = np.zeros(len(self.ranks), dtype=np.int64)
        for place, (name, ranks) in enumerate(self._rank_of.items()):
            if name in wanted.values:
                steps += np.abs(self.ranks[:, place] - ranks.get(wanted.values[name], 0))
        return steps

    def changes(self, wanted: Configuration) -> NDArray[np.int64]:
        """The number of parameters in which each row differs from `wanted`; ANOTHER_VARIANT for another variant's."""
        if wanted.variant != self.variant:
            return np.full(len(self.ranks), ANOTHER_VARIANT, dtype=np.int64)
        counts = np.zeros(len(self.ranks), dtype=np.int64)
        for place, (name, ranks) in enumerate(self._rank_of.items()):
            counts += self.ranks[:, place] != ranks.get(wanted.values.get(name), -1)
        return counts


class Feasible(Sequence[Configuration]):
    """Configurations in the order of their parts, compared by value and made anew each time they are asked for."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._starts = [0, *accumulate(len(part) for part in self.parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, place: int) -> Configuration: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Configuration, ...]: ...
    def __getitem__(self, place: int | slice) -> Configuration | tuple[Configuration, ...]:
        if isinstance(place, slice):
            return tuple(self[i] for i in range(*place.indices(len(self))))
        index = range(len(self))[place]  # raises IndexError, and counts from the end where it is negative
        number = bisect_right(self._starts, index) - 1
        row = index - self._starts[number]
        return next(self.parts[number].configurations(row, row + 1))

    def __iter__(self) -> Iterator[Configuration]:
        for part in self.parts:
            yield from part.configurations(0, len(part))

    def __contains__(self, configuration: object) -> bool:
        return isinstance(configuration, Configuration) and self.position(configuration) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), *self[:1], *self[-1:]))

    def __repr__(self) -> str:
        return f"Feasible({len(self)} configurations)"

    def position(self, configuration: Configuration) -> int | None:
        """The configuration's position in the space, or None where it is not feasible."""
        for start, part in zip(self._starts, self.parts, strict=False):
            row = part.row(configuration)
            if row is not None:
                return start + row
        return None

    @cached_property
    def positions(self) -> Positions:
        """The place of each configuration, as a mapping."""
        return Positions(self)

    def distances(self, wanted: Configuration) -> NDArray[np.int64]:
        """Steps from `wanted` to each configuration; another variant's are farther than any of its own."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part.distances(wanted) for part in self.parts)])

    def changes(self, wanted: Configuration) -> NDArray[np.int64]:
        """The number of parameters in which each configuration differs from `wanted`, or ANOTHER_VARIANT."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part.changes(wanted) for part in self.parts)])


class Positions(Mapping[Configuration, int]):
    """The place of each feasible configuration."""

    def __init__(self, feasible: Feasible) -> None:
        self._feasible = feasible

    def __getitem__(self, configuration: Configuration) -> int:
        position = self._feasible.position(configuration)
        if position is None:
            raise KeyError(configuration)
        return position

    def __iter__(self) -> Iterator[Configuration]:
        return iter(self._feasible)

    def __len__(self) -> int:
        return len(self._feasible)
