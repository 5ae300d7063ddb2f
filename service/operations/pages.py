"""Pages: the order of their rows, and cursors, which hold a row's id so that pages stay in place as rows are added."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement

from tilewright.service.errors import InvalidRequestError

MAX_ROW_ID = 2**31 - 1
"""PostgreSQL's integer, the type of our row ids."""

_WHOLE = re.compile(r"[0-9]{1,10}")


def cursor_of(row_id: int) -> str:
    """The text that `row_id_of` reads."""
    return base64.urlsafe_b64encode(str(row_id).encode()).decode().rstrip("=")


def row_id_of(cursor: str) -> int:
    """The row id inside; raises InvalidRequestError naming `cursor` for anything that `cursor_of` did not write."""
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, UnicodeError):
        raise invalid_cursor() from None
    if not _WHOLE.fullmatch(text) or int(text) > MAX_ROW_ID:
        raise invalid_cursor()
    return int(text)


def ordering(columns: Sequence[Any], order: str) -> list[ColumnElement[Any]]:
    """What to order a query by for one column of a table, downwards if the order begins with -; nulls come last."""
    is_descending = order.startswith("-")
    return [(column.desc() if is_descending else column.asc()).nulls_last() for column in columns]


def invalid_cursor() -> InvalidRequestError:
    """The refusal of a cursor that no page of the list has given out."""
    return InvalidRequestError("cursor", "is not a cursor of this list; leave it out to get the first page.")
