"""Pages: the order of their rows, and cursors, which hold a row's id so that pages stay in place as rows are added."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute, Session

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import Page

Row = TypeVar("Row")
T = TypeVar("T")

MAX_ROW_ID = 2**31 - 1
"""PostgreSQL's integer, the type of our row ids."""

_WHOLE = re.compile(rb"[0-9]{1,10}")


def cursor_of(row_id: int) -> str:
    """The text that `row_id_of` reads."""
    return packed_cursor(str(row_id).encode())


def packed_cursor(content: bytes) -> str:
    """The content as text for addresses, which `cursor_content` reads."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def cursor_content(cursor: str) -> bytes:
    """The content of a cursor; raises InvalidRequestError naming `cursor` for anything else."""
    try:
        return base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
    except binascii.Error:
        raise invalid_cursor() from None


def row_id_of(cursor: str) -> int:
    """The row id inside; raises InvalidRequestError naming `cursor` for anything that `cursor_of` did not write."""
    content = cursor_content(cursor)
    if not _WHOLE.fullmatch(content) or int(content) > MAX_ROW_ID:
        raise invalid_cursor()
    return int(content)


def newest_first(
    session: Session,
    query: Select[Row],
    row_id: InstrumentedAttribute[int],
    answers: Callable[[Sequence[Row]], list[T]],
    *,
    limit: int,
    cursor: str | None,
) -> Page[T]:
    """The page of the query's rows that follows the cursor, by falling ids; raises InvalidRequestError."""
    if cursor is not None:
        query = query.where(row_id < row_id_of(cursor))
    rows = session.scalars(query.order_by(row_id.desc()).limit(limit + 1)).all()
    more = cursor_of(getattr(rows[limit - 1], row_id.key)) if len(rows) > limit else None
    return Page(items=answers(rows[:limit]), next_cursor=more)


def ordering(columns: Sequence[Any], order: str) -> list[ColumnElement[Any]]:
    """The ordering of a query for one column of a table, downwards if the order begins with -; nulls come last."""
    is_descending = order.startswith("-")
    return [(column.desc() if is_descending else column.asc()).nulls_last() for column in columns]


def invalid_cursor() -> InvalidRequestError:
    """The refusal of a cursor that no page of the list has given out."""
    return InvalidRequestError("cursor", "is not a cursor of this list; leave it out to get the first page.")
