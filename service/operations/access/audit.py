"""The record of changes, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import Field
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import Answer, Page
from tilewright.service.operations.pages import newest_first
from tilewright.service.store import models


class AuditAnswer(Answer):
    """One recorded change and its author."""

    id: int
    at: datetime
    actor: str = Field(description="`key NAME`, `this machine` or `command line`.", examples=["key ci"])
    action: str = Field(description="The request or the command.", examples=["POST /v1/jobs"])
    request_id: str | None
    changed: dict[str, int] = Field(description="Number of writes by table.", examples=[{"tuning_jobs": 1}])


class AnsweredRequest(NamedTuple):
    """A read or a refusal as it is recorded: the route, never the address as it was sent."""

    actor: str
    key_id: UUID | None
    method: str
    route: str
    status: int


def record_requests(session: Session, counts: Mapping[AnsweredRequest, int]) -> None:
    """Adds an entry for each of these requests, with how often it was sent; it names no change."""
    rows: list[dict[str, Any]] = [
        {
            "actor": request.actor,
            "key_id": request.key_id,
            "action": f"{request.method} {request.route} {request.status}" + (f" x {count}" if count > 1 else ""),
            "changed": {},
        }
        for request, count in counts.items()
    ]
    session.execute(insert(models.AuditEntry), rows)


def entries(session: Session, *, actor: str | None = None, limit: int, cursor: str | None) -> Page[AuditAnswer]:
    """A page of changes, newest first; `actor` limits it to the changes of one caller."""
    entry = models.AuditEntry
    query = select(entry)
    if actor is not None:
        query = query.where(entry.actor == actor)
    return newest_first(session, query, entry.id, _answers, limit=limit, cursor=cursor)


def _answers(rows: Sequence[models.AuditEntry]) -> list[AuditAnswer]:
    return [AuditAnswer.model_validate(row) for row in rows]
