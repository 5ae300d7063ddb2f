"""Tables in an order that the reader chooses by links in their headings; the order is part of the address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query, Request

from tilewright.service.dashboard.rendering import address
from tilewright.service.errors import InvalidRequestError

Row = TypeVar("Row")

Sort = Annotated[str | None, Query(max_length=32)]
"""The parameter of a page that `TableOrder.of` reads."""

PageNumber = Annotated[int, Query(alias="page", ge=1, le=10_000)]
"""The parameter of a page with a table that goes on; the first page is 1."""


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table with all its rows: its sort key, and whether the greatest come first."""

    value: Callable[[Row], Any]
    greatest_first: bool = False


@dataclass(frozen=True)
class TableOrder:
    """The column by which a table is sorted and its direction; `at` makes the page's address with another `sort`."""

    columns: Mapping[str, bool]
    """Whether a column's greatest values come first when it is chosen, by the column's name."""
    column: str
    is_descending: bool
    at: Callable[[str], str]

    @classmethod
    def of(
        cls, text: str | None, columns: Mapping[str, bool], at: Callable[[str], str], field: str = "sort"
    ) -> TableOrder:
        """The order that `text` names, like `gain` or, downwards, `-gain`; without text that of the first column.

        Raises InvalidRequestError naming `field` for a column that the table does not have.
        """
        first = next(iter(columns))
        text = text or _named(first, is_descending=columns[first])
        column = text.removeprefix("-")
        if column not in columns:
            raise InvalidRequestError(field, f"must be one of {', '.join(columns)}, with - in front for downwards.")
        return cls(columns, column, text.startswith("-"), at)

    @property
    def text(self) -> str:
        """The order as `of` reads it from an address."""
        return _named(self.column, is_descending=self.is_descending)

    def direction(self, column: str) -> str | None:
        """The value of `aria-sort`; None for a column by which the table is not sorted."""
        if column != self.column:
            return None
        return "descending" if self.is_descending else "ascending"

    def path(self, column: str) -> str:
        """The page sorted by that column; chosen again, the other way round."""
        is_descending = not self.is_descending if column == self.column else self.columns[column]
        return self.at(_named(column, is_descending=is_descending))

    def sorted(self, rows: Iterable[Row], value: Callable[[Row], Any]) -> list[Row]:
        """The rows by their value in the column; those without one come last either way."""
        known = [(value(row), row) for row in rows]
        there = [pair for pair in known if pair[0] is not None]
        there.sort(key=lambda pair: pair[0], reverse=self.is_descending)
        return [row for _, row in there] + [row for found, row in known if found is None]


def arranged(
    request: Request, name: str, columns: Mapping[str, Column[Row]], rows: Iterable[Row]
) -> tuple[TableOrder, list[Row]]:
    """The order that the address gives the table of that name, and all its rows in it.

    `name`: the parameter of the address, and the id of what stands above the table where a page has several.
    """
    query = dict(request.query_params)
    fragment = "" if name == "sort" else f"#{name}"
    order = TableOrder.of(
        query.get(name),
        {column: of.greatest_first for column, of in columns.items()},
        lambda text: address(request.url.path, query | {name: text}) + fragment,
        name,
    )
    return order, order.sorted(rows, columns[order.column].value)


def own_path(request: Request) -> str:
    """The address of the page as it was asked for, from which its sections refresh themselves."""
    return address(request.url.path, request.query_params)


def _named(column: str, *, is_descending: bool) -> str:
    return f"-{column}" if is_descending else column
