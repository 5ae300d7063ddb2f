"""Access keys, browser sessions and the record of changes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api import refusals
from tilewright.service.api.access import COOKIE, address_of, lock_of, session_token
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import PageQuery
from tilewright.service.api.problems import BY_ERROR, CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations import audit, keys, sessions
from tilewright.service.operations.answers import Page
from tilewright.service.operations.audit import AuditAnswer
from tilewright.service.operations.keys import KeyAnswer, NewKeyAnswer
from tilewright.service.operations.requests import KeyName, KeyRequest, RotationRequest, SessionRequest
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1", tags=["access"])

Name = Annotated[KeyName, Path(description="A key's name.")]
OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


class AuditQuery(PageQuery):
    """Which changes."""

    actor: str | None = Field(
        default=None, max_length=128, description="Only changes of this one.", examples=["key ci"]
    )


@router.post("/keys", operation_id="create_key", status_code=201, responses=refuses(INVALID, CONFLICT, UNAVAILABLE))
def create_key(request: KeyRequest, response: Response) -> NewKeyAnswer:
    """Make a key. Its token is in this answer and nowhere else."""
    response.headers["Cache-Control"] = "no-store"
    with transaction() as session:
        return keys.create_key(session, request)


@router.get("/keys", operation_id="list_keys", responses=refuses(UNAVAILABLE))
def list_keys() -> Page[KeyAnswer]:
    """Every key, those out of force too; never a token."""
    with transaction() as session:
        return Page(items=keys.keys(session))


@router.post("/keys/{name}/rotate", operation_id="rotate_key", status_code=201, responses=OF_ONE)
def rotate_key(name: Name, body: RotationRequest, request: Request, response: Response) -> NewKeyAnswer:
    """A new token for the key; the old one stays good for `grace_s` seconds."""
    response.headers["Cache-Control"] = "no-store"
    with transaction() as session:
        made = keys.rotate_key(session, name, body.grace_s)
    lock_of(request.scope).forget()
    return made


@router.delete("/keys/{name}", operation_id="revoke_key", responses=OF_ONE)
def revoke_key(name: Name, request: Request) -> Page[KeyAnswer]:
    """Put the key out of force, at once in this process and within five seconds in the others; its sessions end."""
    with transaction() as session:
        revoked = keys.revoke_key(session, name)
    lock_of(request.scope).forget()
    return Page(items=revoked)


@router.get("/audit", operation_id="list_audit_entries", responses=refuses(INVALID, UNAVAILABLE))
def list_audit_entries(query: Annotated[AuditQuery, Query()]) -> Page[AuditAnswer]:
    """Who changed what, newest first."""
    with transaction() as session:
        return audit.entries(session, actor=query.actor, limit=query.limit, cursor=query.cursor)


@router.post(
    "/session",
    operation_id="open_session",
    status_code=204,
    responses=refuses(INVALID, BY_ERROR[refusals.UnknownCallerError], UNAVAILABLE),
)
async def open_session(body: SessionRequest, request: Request, response: Response) -> None:
    """Exchange a key for a cookie of twelve hours that scripts cannot read and other sites cannot send."""
    token = await lock_of(request.scope).look_up(partial(_open, body.key), address_of(request.scope))
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(sessions.LASTS.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


@router.delete("/session", operation_id="close_session", status_code=204, responses=refuses(UNAVAILABLE))
def close_session(request: Request, response: Response) -> None:
    """Sign out. Without a session nothing happens."""
    token = session_token(request.headers)
    if token is not None:
        with transaction() as session:
            is_closed = sessions.close_session(session, token)
        if is_closed:  # else anybody could have everybody looked up again, again and again
            lock_of(request.scope).forget()
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")


def _open(key: str) -> str | None:
    with transaction() as session:
        return sessions.open_session(session, key)
