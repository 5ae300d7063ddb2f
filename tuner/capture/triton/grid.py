"""The grid of captured launches as an expression of a configuration `c` and a problem `p`, from samples of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
MOST_FACTORS = 3


@dataclass(frozen=True)
class Term:
    """A number in every sample, and its expression."""

    text: str
    numbers: Numbers

    def times(self, other: Term) -> Term:
        """The product."""
        return Term(f"{self.text} * {other.text}", self.numbers * other.numbers)


def grid_along(sizes: Numbers, axes: Sequence[Term], values: Sequence[Term]) -> str | None:
    """The expression for one axis of the grid: a product of sizes, values, and sizes over values rounded up.

    None where none of these has the numbers. `axes` are sizes of the problem, `values` those of a configuration.
    """
    if not (sizes - sizes[0]).any() and (sizes[0] == 1 or not axes):
        return str(int(sizes[0]))
    factors = list(_factors(axes, values))
    for count in range(1, MOST_FACTORS + 1):
        found = _product(sizes, factors, count)
        if found is not None:
            return found
    most = int(sizes.max())
    for count in (1, 2):  # a program for each multiprocessor at most
        found = _product(sizes, factors, count, most) if (sizes < most).any() else None
        if found is not None:
            return f"min({most}, {found})"
    return str(most) if not (sizes - most).any() else None


def grid_by_flags(sizes: Numbers, axes: Sequence[Term], values: Sequence[Term], flags: Sequence[Term]) -> str | None:
    """The same, where that fails as a choice between two expressions by one of the flags."""
    found = grid_along(sizes, axes, values)
    for flag in flags if found is None else ():
        is_on = flag.numbers.astype(bool)
        if not is_on.any() or is_on.all():
            continue
        parts = [
            grid_along(sizes[rows], *([Term(one.text, one.numbers[rows]) for one in terms] for terms in (axes, values)))
            for rows in (is_on, ~is_on)
        ]
        if None not in parts:
            return f"({parts[0]} if {flag.text} else {parts[1]})"
    return found


def _factors(axes: Sequence[Term], values: Sequence[Term]) -> Iterator[Term]:
    yield from axes
    divisors = [*values, *(one.times(other) for one, other in itertools.combinations(values, 2))]
    for axis in axes:
        for divisor in divisors:
            yield Term(f"-(-{axis.text} // {_bracketed(divisor.text)})", -(-axis.numbers // divisor.numbers))
    yield from values
    for axis in axes:
        for divisor in divisors:
            if (axis.numbers // divisor.numbers > 0).all():
                yield Term(f"({axis.text} // {_bracketed(divisor.text)})", axis.numbers // divisor.numbers)


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text else text


def _product(sizes: Numbers, factors: Sequence[Term], count: int, most: int | None = None) -> str | None:
    """The first product of so many factors that has the numbers; with `most` as their least upper bound."""
    if most is None:
        factors = [one for one in factors if not (sizes % one.numbers).any()]
    different = {one.numbers.tobytes(): one for one in reversed(factors)}  # the first of those that are equal
    by_place = [one for one in factors if different[one.numbers.tobytes()] is one]
    for chosen in itertools.combinations_with_replacement(by_place, count):
        product = np.prod([one.numbers for one in chosen], axis=0)
        if most is not None:
            product = np.minimum(product, most)
        if (product == sizes).all():
            return " * ".join(one.text for one in chosen)
    return None
