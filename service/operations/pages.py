"""Cursors: opaque to callers, one whole number inside, so that a page's place survives rows added since."""

from __future__ import annotations

import base64
import binascii
import re

from tilewright.service.errors import InvalidRequestError

MAX_ROW_ID = 2**31 - 1
"""PostgreSQL's integer, the type of our row ids."""

_WHOLE = re.compile(r"[0-9]{1,10}")


def cursor_of(row_id: int) -> str:
    """The text that `row_id_of` reads."""
    return base64.urlsafe_b64encode(str(row_id).encode()).decode().rstrip("=")


def row_id_of(cursor: str) -> int:
    """The row id inside; raises InvalidRequestError naming `cursor` for anything that `cursor_of` did not write."""
    refusal = InvalidRequestError("cursor", "is not one that a page of this list handed out; leave it out to start.")
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, UnicodeError):
        raise refusal from None
    if not _WHOLE.fullmatch(text) or int(text) > MAX_ROW_ID:
        raise refusal
    return int(text)
