"""One constraint, asked about many combinations of values in few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.enumeration.lanes import Lanes, Split, Unsuitable, lanes

CONSTRAINT_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a constraint may raise on points which an earlier constraint rules out."""

FEW = 24
"""Rows that are decided one by one sooner than by arrays."""

RULED_OUT, IN, OPEN = 0, 1, 2

Verdicts = NDArray[np.uint8]
Groups = list[NDArray[np.intp]]
Table = Mapping[str, NDArray[np.int64]]


class UnreadParameter(BaseException):
    """A constraint read a parameter that has no value yet.

    Not an Exception, so that a constraint's own `except` clauses let it through.
    """

    def __init__(self, name: str) -> None:
        self.name = name


class Reading(Mapping[str, int]):
    """The values that a constraint gets, of which only some exist yet; reading another raises UnreadParameter."""

    def __init__(self, values: Mapping[str, Any], names: Sequence[str]) -> None:
        self._at_hand, self._names = values, names
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(name)
        raise UnreadParameter(name)

    def __getitem__(self, name: str) -> int:
        if name in self._at_hand:
            return self._at_hand[name]  # type: ignore[no-any-return] # or Lanes, which pass for one
        if name not in self._names:
            raise KeyError(name)
        raise UnreadParameter(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Values({dict(self)})"


@dataclass(eq=False)
class Question:
    """A constraint of one problem, and the parameters that it was seen to read. `names` are all there are."""

    holds: Callable[[Any], object]
    names: Sequence[str]
    reads: set[str] = field(default_factory=set)
    fails: bool = False  # it raised an error; that counts at the end, on the points that all others admit

    def look(self, values: Mapping[str, int]) -> None:
        """Adds the parameters that the constraint reads to `reads`."""
        seen = -1
        while seen < len(self.reads):
            seen = len(self.reads)
            self._decide_one({name: values[name] for name in self.reads})

    def decide(self, table: Table, count: int) -> Verdicts:
        """IN, RULED_OUT or OPEN for each row of the table of values; rows differ from one another.

        Open is what raises an error, or reads a parameter that the table has not, whose name is then among `reads`.
        """
        verdicts = np.full(count, OPEN, dtype=np.uint8)
        groups = [np.arange(count)]
        while groups:
            rows = groups.pop()
            if len(rows) > FEW:
                found = self._decide_together({name: column[rows] for name, column in table.items()})
                if isinstance(found, list):
                    groups += [rows[part] for part in found]
                else:
                    verdicts[rows] = found
            else:
                columns = [column[rows].tolist() for column in table.values()]
                for row, *values in zip(rows, *columns, strict=True):
                    verdicts[row] = self._decide_one(dict(zip(table, values, strict=True)))
        return verdicts

    def _decide_one(self, values: Mapping[str, int]) -> int:
        try:
            return IN if self.holds(Reading(values, self.names)) else RULED_OUT
        except UnreadParameter as unread:
            self.reads.add(unread.name)
        except CONSTRAINT_ERRORS:
            self.fails = True
        return OPEN

    def _decide_together(self, columns: Table) -> Verdicts | int | Groups:
        """The verdicts on all rows, or the groups of rows to ask about one after another."""
        values = {name: lanes(column, float(np.abs(column).max())) for name, column in columns.items()}
        try:
            answer = self.holds(Reading(values, self.names))
        except UnreadParameter as unread:
            self.reads.add(unread.name)
            return OPEN
        except Split as split:
            return split.groups
        except (Unsuitable, *CONSTRAINT_ERRORS):
            return _by_parameter(columns)
        verdicts = (answer.numbers != 0).astype(np.uint8) if isinstance(answer, Lanes) else int(bool(answer))
        # One in plain numbers too: code that asks for types may take another way there.
        first = self._decide_one({name: int(column[0]) for name, column in columns.items()})
        return verdicts if np.ravel(verdicts)[0] == first else _by_parameter(columns)


def _by_parameter(columns: Table) -> Groups:
    """The rows by the values of the parameter that differs in the fewest."""
    groups = (Split(column).groups for column in columns.values())
    return min((parts for parts in groups if len(parts) > 1), key=len)
