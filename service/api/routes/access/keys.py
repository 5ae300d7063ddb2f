"""Access keys, browser sessions and the record of changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.middleware.access import lock_of
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import PageQuery
from tilewright.service.api.problem_types import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.access import audit, keys, sessions
from tilewright.service.operations.access.audit import AuditAnswer
from tilewright.service.operations.access.keys import KeyAnswer, NewKeyAnswer
from tilewright.service.operations.access.sessions import OpenSession
from tilewright.service.operations.answers import Page
from tilewright.service.operations.requests import KeyRequest, OwnerName, RotationRequest
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1", tags=["access"])

Name = Annotated[OwnerName, Path(description="A key's name.")]
SessionId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="A session's id.", examples=["9f86d081884c7d65"])]
OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


class AuditQuery(PageQuery):
    """The filter of changes."""

    actor: str | None = Field(
        default=None, max_length=128, description="Only changes by this actor.", examples=["key ci"]
    )


@router.post("/keys", operation_id="create_key", status_code=201, responses=refuses(INVALID, CONFLICT, UNAVAILABLE))
def create_key(request: KeyRequest, response: Response) -> NewKeyAnswer:
    """Create a key. Its token is in this answer and cannot be shown again."""
    response.headers["Cache-Control"] = "no-store"
    return committed(keys.create_key)(request)


@router.get("/keys", operation_id="list_keys", responses=refuses(UNAVAILABLE))
def list_keys() -> Page[KeyAnswer]:
    """Every key, also expired and revoked ones; tokens are never shown."""
    with transaction() as session:
        return Page(items=keys.keys(session))


@router.post("/keys/{name}/rotate", operation_id="rotate_key", status_code=201, responses=OF_ONE)
def rotate_key(name: Name, body: RotationRequest, request: Request, response: Response) -> NewKeyAnswer:
    """Give the key a new token; the old one stays valid for `grace_s` seconds."""
    response.headers["Cache-Control"] = "no-store"
    with transaction() as session:
        made = keys.rotate_key(session, name, body.grace_s)
    lock_of(request.scope).forget()
    return made


@router.delete("/keys/{name}", operation_id="revoke_key", responses=OF_ONE)
def revoke_key(name: Name, request: Request) -> Page[KeyAnswer]:
    """Revoke the key: at once in this process, within five seconds in the others. Its browser sessions end."""
    with transaction() as session:
        revoked = keys.revoke_key(session, name)
    lock_of(request.scope).forget()
    return Page(items=revoked)


@router.get("/sessions", operation_id="list_sessions", responses=refuses(UNAVAILABLE))
def list_sessions() -> Page[OpenSession]:
    """The browsers that are signed in, the newest first."""
    with transaction() as session:
        return Page(items=sessions.open_sessions(session))


@router.delete("/sessions/{session_id}", operation_id="end_session", status_code=204, responses=OF_ONE)
def end_session(session_id: SessionId, request: Request) -> None:
    """Sign a browser out: at once in this process, within five seconds in the others."""
    with transaction() as session:
        sessions.end_session(session, session_id)
    lock_of(request.scope).forget()


@router.get("/audit", operation_id="list_audit_entries", responses=refuses(INVALID, UNAVAILABLE))
def list_audit_entries(query: Annotated[AuditQuery, Query()]) -> Page[AuditAnswer]:
    """Changes with their authors, newest first."""
    return committed(audit.entries)(actor=query.actor, limit=query.limit, cursor=query.cursor)
