"""The feasible points of one variant, found without looking at every point of the product.

Parameters are bound one after another, and a constraint cuts as soon as those that it reads are bound. What it reads
is seen by letting it read. It decides once for each distinct combination of the values that it reads, and for many
of them at a time (see `lanes`). Constraints are functions of values, problem and limits and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.enumeration.lanes import Lanes, Split, Unsuitable, lanes

LARGEST_TABLE = 1 << 22
"""Combinations of values that are told apart by a table; more are sorted."""

MANY, LOOKED_AT = 2000, 16
"""Points from which on so many are looked at first, to see which question rules out most."""

Ranks = NDArray[np.int16]


def places_in_product(ranks: Sequence[NDArray[np.integer]], sizes: Sequence[int]) -> NDArray[np.int64]:
    """The place of each point in the product of lists of these sizes, the last of which runs fastest."""
    places = np.zeros(len(ranks[0]), dtype=np.int64)
    for column, size in zip(ranks, sizes, strict=True):
        places *= size
        places += column
    return places


class Enumeration:
    """The points of a product, one parameter bound after another, that no constraint has ruled out so far."""

    def __init__(
        self,
        domains: Mapping[str, Sequence[int]],
        constraints: Sequence[Callable[[Any], object]],
        looked_at: Sequence[Mapping[str, int]],
    ) -> None:
        """`looked_at` are sample points that show which parameters each constraint reads; others show later."""
        self._domains = {name: np.array(values, dtype=np.int64) for name, values in domains.items()}
        self._names = list(domains)
        self._bound: dict[str, Ranks] = {}
        self._count = 1
        self._questions = [Question(holds, self._names) for holds in constraints]
        for question in self._questions:
            for values in looked_at:
                question.look(values)
            question.fails = False

    def ranks(self) -> Ranks:
        """The feasible points as places in each parameter's list of values: a row a point, rows in ascending order.

        Raises what a constraint raises on a point that all others admit.
        """
        waiting = self._cut(self._questions)
        while len(self._bound) < len(self._names):
            self._bind(self._next_parameter(waiting))
            waiting = self._cut(waiting)
        for question in waiting:
            question.fails = False
            if self._cut_by(question):
                self._cut_strictly(question)
        if not self._bound:
            return np.zeros((self._count, 0), dtype=np.int16)
        columns = [self._bound[name] for name in self._names]
        order = self._order(columns)
        return np.stack([column[order] for column in columns], axis=1)

    def _order(self, columns: Sequence[Ranks]) -> NDArray[np.intp] | slice:
        sizes = [len(self._domains[name]) for name in self._names]
        if math.prod(sizes) >= 2**63:
            return np.lexsort(columns[::-1])
        places = places_in_product(columns, sizes)
        return slice(None) if (places[1:] > places[:-1]).all() else np.argsort(places)

    def _next_parameter(self, waiting: Sequence[Question]) -> str:
        """One of those that the question needs which multiplies the points least; at last those that nobody reads."""
        free = [name for name in self._names if name not in self._bound]
        missing = [[name for name in free if name in question.reads] for question in waiting]
        growth = {name: len(self._domains[name]) for name in free}
        return min(filter(None, missing), key=lambda names: math.prod(growth[n] for n in names), default=free)[0]

    def _bind(self, name: str) -> None:
        size = len(self._domains[name])
        self._bound = {other: np.repeat(column, size) for other, column in self._bound.items()}
        self._bound[name] = np.tile(np.arange(size, dtype=np.int16), self._count)
        self._count *= size

    def _cut(self, questions: Sequence[Question]) -> list[Question]:
        """Rules points out by the questions whose reads are bound; those that leave some open come back."""
        ready = [question for question in questions if not question.fails and question.reads <= set(self._bound)]
        if self._count > MANY:
            ready.sort(key=self._share_left)
        answered = [q for q in ready if q.reads <= set(self._bound) and not self._cut_by(q)]
        return [question for question in questions if question not in answered]

    def _share_left(self, question: Question) -> float:
        """About what part of the points it leaves, so that those that rule out most can be asked first."""
        rows = np.arange(0, self._count, -(-self._count // LOOKED_AT))
        table = {name: self._domains[name][self._bound[name][rows]] for name in self._names if name in question.reads}
        verdicts = question.decide(table, len(rows))
        share = 1.0 if question.fails else float((verdicts != RULED_OUT).mean())
        question.fails = False
        return share

    def _cut_by(self, question: Question) -> bool:
        """Whether some points are still open after this question has ruled out what it can."""
        while True:
            bound = set(self._bound)
            known = question.reads & bound
            verdicts = self._verdicts(question, [name for name in self._names if name in known])
            if question.reads & bound == known:
                break
        self._keep(verdicts != RULED_OUT)
        return bool((verdicts == OPEN).any())

    def _verdicts(self, question: Question, reads: Sequence[str]) -> Verdicts:
        """The question's verdict on every point, decided once for each combination of values that it reads."""
        if not reads or not self._count:
            return np.repeat(question.decide({}, 1), self._count)
        sizes = [len(self._domains[name]) for name in reads]
        columns = [self._bound[name] for name in reads]
        if math.prod(sizes) <= LARGEST_TABLE:
            places = places_in_product(columns, sizes)
            answers = np.full(math.prod(sizes), OPEN, dtype=np.uint8)
            present = np.zeros(len(answers), dtype=bool)
            present[places] = True
            distinct = np.flatnonzero(present)
            combinations = np.unravel_index(distinct, sizes)
        else:
            rows, places = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
            places, answers = places.reshape(-1), np.full(len(rows), OPEN, dtype=np.uint8)
            distinct, combinations = np.arange(len(rows)), tuple(rows.T)
        table = {name: self._domains[name][ranks] for name, ranks in zip(reads, combinations, strict=True)}
        answers[distinct] = question.decide(table, len(distinct))
        return answers[places]

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._count = int(np.count_nonzero(kept))
        if self._count < len(kept):
            self._bound = {name: column[kept] for name, column in self._bound.items()}

    def _cut_strictly(self, question: Question) -> None:
        """Asks about each point that is left, one by one, and lets errors out."""
        values = {name: self._domains[name][ranks] for name, ranks in self._bound.items()}
        rows = ({name: int(column[i]) for name, column in values.items()} for i in range(self._count))
        self._keep(np.array([bool(question.holds(Reading(row, self._names))) for row in rows], dtype=bool))


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
