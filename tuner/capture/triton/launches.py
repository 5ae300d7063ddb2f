"""All captured launches of one Triton function that differ in sizes alone, and what follows from these sizes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.dtypes import is_integer
from tilewright.kernels.fields.axes import Layout
from tilewright.tuner.capture.triton.asserted import range_lengths
from tilewright.tuner.capture.triton.sizes import Column, Sizes, axes_of, is_padded, is_stride
from tilewright.tuner.capture.triton.space import Tuned, is_block, tuned

Row = Mapping[str, Any]


def launch_kind(row: Row) -> str:
    """A key shared by launches that differ in sizes alone; "" for libraries other than Triton."""
    if row["library"] != "Triton":
        return ""
    told = row["triton"]
    varying = {*told["heuristics"], *(name for one in told.get("configs") or () for name in one["values"])}
    flags = {name: value for name, value in row["constexprs"].items() if type(value) is not int and name not in varying}
    arguments = [(one["kind"], one.get("dtype"), len(one.get("shape", ()))) for one in row["arguments"]]
    return json.dumps([row["source"], arguments, flags], sort_keys=True)


class Launches:
    """The launches; `row` is the adopted one, whose sizes become the example."""

    def __init__(self, row: Row, launches: Sequence[Row]) -> None:
        kind = launch_kind(row)
        self.row, self.facts = row, row["triton"]
        self.rows = [row, *(one for one in launches if one is not row and launch_kind(one) == kind)]
        self.others = sum(one["source"] == row["source"] and launch_kind(one) != kind for one in launches)
        names = enumerate(self.facts["passed"])
        self.passed = {name: place for place, name in names if row["arguments"][place]["kind"] != "none"}

    def argument(self, name: str) -> Row:
        """The argument of that name in the launch that is adopted."""
        argument: Row = self.row["arguments"][self.passed[name]]
        return argument

    def number(self, name: str) -> Column:
        """A number in every launch."""
        return tuple(row["arguments"][self.passed[name]]["value"] for row in self.rows)

    def columns(self, name: str, what: str) -> list[Column]:
        """The `shape` or `strides` of an array, axis by axis."""
        place = self.passed[name]
        rows = [row["arguments"][place][what] for row in self.rows]
        return [tuple(one) for one in zip(*rows, strict=True)]

    def is_dense(self, name: str) -> bool:
        """Whether the array had no gaps in any launch."""
        arrays = (row["arguments"][self.passed[name]] for row in self.rows)
        return all(Layout.dense(tuple(one["shape"])).strides == tuple(one["strides"]) for one in arrays)

    @cached_property
    def given_numbers(self) -> dict[str, Column]:
        """Constexprs that are whole numbers which the call itself gives, and no configuration or heuristic."""
        configs = self.facts.get("configs") or ()
        others = {*self.facts["heuristics"], *(name for one in configs for name in one["values"])}
        named = self.row["constexprs"].items()
        names = [name for name, value in named if type(value) is int and name not in others]
        return {name: tuple(row["constexprs"][name] for row in self.rows) for name in names}

    @cached_property
    def _passed_numbers(self) -> dict[str, Column]:
        """Arguments that are whole numbers."""
        kinds = {name: self.argument(name) for name in self.passed}
        integers = [n for n, one in kinds.items() if one["kind"] == "scalar" and is_integer(one["dtype"])]
        return {name: self.number(name) for name in integers}

    @cached_property
    def sizes(self) -> Sizes:
        """The axes, and the numbers that follow from them."""
        arrays = [name for name in self.passed if self.argument(name)["kind"] == "tensor"]
        shapes = {name: self.columns(name, "shape") for name in arrays}
        sides = {side for columns in shapes.values() for side in columns}
        numbers = dict(self._passed_numbers)
        for name, column in self.given_numbers.items():  # one of each column: further ones follow from it
            if column in sides and not is_block(name) and not is_padded(name) and column not in numbers.values():
                numbers[name] = column
        return axes_of(numbers, shapes, len(self.rows))

    @cached_property
    def parameters(self) -> list[Tuned]:
        """The parameters that may be tuned."""
        return tuned(self.facts, self.row, [*self._followed], self.row["source"])

    @cached_property
    def _followed(self) -> dict[str, str]:
        lengths = range_lengths(self.row["source"])
        found = {}
        for name, column in self.given_numbers.items():
            is_rounded_up = is_padded(name) or is_block(name) or (name in lengths and self._is_told_apart(name, column))
            found[name] = self.sizes.power_expression(column, is_padded=is_rounded_up)
        return {name: text for name, text in found.items() if text is not None}

    def _is_told_apart(self, name: str, column: Column) -> bool:
        """Whether the function gets one number twice: as the length of a range, and as the part of it that counts."""
        numbers = self._passed_numbers | self.given_numbers
        return any(numbers[one] == column for one in numbers if one != name and not is_stride(one))

    @cached_property
    def derived(self) -> dict[str, str]:
        """Given constexprs that follow from the axes, as expressions."""
        names = {one.triton_name for one in self.parameters}
        return {name: text for name, text in self._followed.items() if name not in names}

    def grid(self) -> list[str | None]:
        """The expression along each axis; None where none was found."""
        samples = [(place, one) for place, row in enumerate(self.rows) for one in row["grids"]]
        places = [place for place, _ in samples]
        values = [one["values"] for _, one in samples]
        grids = np.array([[*one["grid"], 1, 1][:3] for _, one in samples], np.int64)
        axes = [Term(f'p.shape["{axis}"]', np.array(column)[places]) for axis, column in self.sizes.axes.items()]
        axes += [one.times(other) for one, other in itertools.combinations(axes, 2)]
        terms = [*self._terms(values)]
        flags = [
            Term(one.expression, np.array([row[one.triton_name] for row in values]))
            for one in self.parameters
            if one.is_flag and all(one.triton_name in row for row in values)
        ]
        return [grid_by_flags(grids[:, along], axes, terms, flags) for along in range(3)]

    def _terms(self, values: Sequence[Mapping[str, int]]) -> Iterator[Term]:
        """Numbers of a configuration that a grid may follow from."""
        texts = {one.triton_name: one.expression for one in self.parameters if one.is_plain}
        fixed = self.given_numbers.keys() - {one.triton_name for one in self.parameters}
        texts |= {name: self.derived.get(name, str(self.row["constexprs"][name])) for name in sorted(fixed)}
        for name, text in texts.items():
            if all(row.get(name, 0) > 0 for row in values) and any(row[name] > 1 for row in values):
                yield Term(text, np.array([row[name] for row in values]))


Numbers = NDArray[np.int64]
MOST_FACTORS = 3


@dataclass(frozen=True)
class Term:
    """A number in every sample, and its expression."""

    text: str
    numbers: Numbers

    def times(self, other: Term) -> Term:
        """The product of two terms."""
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
    """The same expression, or where that fails a choice between two by one of the flags."""
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
    """The first product of so many factors that gives the numbers; with `most`, that is their least upper bound."""
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
