"""Entries of Helion's remote cache: stored and answered as they are, apart from every result."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

from pydantic import Field
from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import Answer, Page
from tilewright.service.operations.caller import author
from tilewright.service.operations.pages import newest_first
from tilewright.service.operations.requests import Request
from tilewright.service.store import models

MOST_CHARACTERS = 1 << 15
"""The longest entry; Helion's have about 2000 characters."""

MOST_ENTRIES = 2000
"""The entries that one key's name may store: with more, its oldest are deleted."""

HelionKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="The SHA-256 of Helion's own key.")]


class HelionEntryRequest(Request):
    """An entry to store, as Helion gives it to its remote cache."""

    data: str = Field(
        min_length=1,
        max_length=MOST_CHARACTERS,
        description="JSON: an object with `config`, which is JSON again.",
        examples=['{"config": "{\\"block_sizes\\": [64]}"}'],
    )


class HelionEntryAnswer(Answer):
    """A configuration that Helion's search chose. It has no time, and nobody here measured or verified it."""

    key: HelionKey
    data: str = Field(description="JSON, as it was stored.")
    stored_by: str = Field(description="The name of the key that stored it.")
    stored_at: datetime


def entries(session: Session, *, limit: int, cursor: str | None) -> Page[HelionEntryAnswer]:
    """A page of entries, those stored last first; raises InvalidRequestError for an unknown cursor."""
    entry = models.HelionEntry
    answers = lambda rows: [HelionEntryAnswer.model_validate(row) for row in rows]  # noqa: E731
    return newest_first(session, select(entry), entry.id, answers, limit=limit, cursor=cursor)


def entry(session: Session, key: str) -> HelionEntryAnswer:
    """The entry under that key; raises NotFoundError."""
    row = session.scalars(select(models.HelionEntry).where(models.HelionEntry.key == key)).one_or_none()
    if row is None:
        raise NotFoundError("entry of Helion's cache", key)
    return HelionEntryAnswer.model_validate(row)


def store_entry(session: Session, key: str, request: HelionEntryRequest) -> HelionEntryAnswer:
    """The entry, stored in place of the one before, whoever stored that; the caller's oldest beyond 2000 are deleted.

    Raises InvalidRequestError for what Helion could not read.
    """
    _check(request.data)
    table = models.HelionEntry
    statement = insert(table).values(key=key, data=request.data, stored_by=author())
    new = statement.excluded
    values = {"id": new.id, "data": new.data, "stored_by": new.stored_by, "stored_at": func.now()}
    row = session.scalars(statement.on_conflict_do_update(index_elements=["key"], set_=values).returning(table)).one()
    answer = HelionEntryAnswer.model_validate(row)
    oldest = select(table.id).where(table.stored_by == answer.stored_by).order_by(table.id.desc()).offset(MOST_ENTRIES)
    # Rows that somebody stores anew are skipped: nobody waits for anybody here.
    session.execute(delete(table).where(table.id.in_(oldest.with_for_update(skip_locked=True).scalar_subquery())))
    return answer


def _check(data: str) -> None:
    try:
        is_readable = isinstance(json.loads(json.loads(data)["config"]), dict)
    except (KeyError, TypeError, ValueError, RecursionError):
        is_readable = False
    if not is_readable:
        raise InvalidRequestError("data", "must be a JSON object whose `config` is the text of a JSON object.")
