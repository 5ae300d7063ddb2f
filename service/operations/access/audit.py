"""The record of changes, newest first."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import Answer, Page
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.store import models


class AuditAnswer(Answer):
    """One change."""

    id: int
    at: datetime
    actor: str = Field(description="`key NAME`, `this machine` or `command line`.", examples=["key ci"])
    action: str = Field(description="The request or the command.", examples=["POST /v1/jobs"])
    request_id: str | None
    changed: dict[str, int] = Field(description="Number of writes by table.", examples=[{"tuning_jobs": 1}])


def entries(session: Session, *, actor: str | None = None, limit: int, cursor: str | None) -> Page[AuditAnswer]:
    """A page of changes, newest first; `actor` limits it to the changes of one caller."""
    entry = models.AuditEntry
    query = select(entry).order_by(entry.id.desc()).limit(limit + 1)
    if actor is not None:
        query = query.where(entry.actor == actor)
    if cursor is not None:
        query = query.where(entry.id < row_id_of(cursor))
    rows = session.scalars(query).all()
    following = cursor_of(rows[limit - 1].id) if len(rows) > limit else None
    items = [
        AuditAnswer(id=r.id, at=r.at, actor=r.actor, action=r.action, request_id=r.request_id, changed=r.changed)
        for r in rows[:limit]
    ]
    return Page(items=items, next_cursor=following)
