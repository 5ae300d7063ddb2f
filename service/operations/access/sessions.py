"""Browser sessions: a key is entered once, then a cookie stands for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from urllib.parse import urlencode

from pydantic import Field
from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.sql import ColumnElement

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.access import keys
from tilewright.service.operations.access.keys import TokenOwner
from tilewright.service.operations.answers import Answer
from tilewright.service.settings import settings
from tilewright.service.store import models

COOKIE = "tilewright_session"
HOST_COOKIE = f"__Host-{COOKIE}"
"""Its name under https: browsers take one of such a name from this very host alone, not from its neighbours."""

LASTS = timedelta(hours=12)
"""A working day; then the key must be entered again."""

_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


class SignInProblem(StrEnum):
    """Why the sign-in form is shown again; the value is part of the address."""

    WRONG_KEY = "wrong-key"
    TOO_OFTEN = "too-often"
    NO_ANSWER = "no-answer"  # of an OpenID provider
    NO_RIGHTS = "no-rights"


def cookie_name(scheme: str) -> str:
    """The name of the cookie for browsers that use `scheme`, or the scheme of the public address where there is one."""
    return HOST_COOKIE if (settings().public_url or scheme).startswith("https") else COOKIE


def own_path(path: str) -> str:
    """The path to go on to after signing in: the given one where it is on this server, else the first page."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def sign_in_path(following: str = "/", problem: SignInProblem | None = None) -> str:
    """The path of the sign-in form that leads on to the `following` path and shows the problem."""
    parameters = {"next": following} if following != "/" else {}
    if problem:
        parameters["problem"] = problem.value
    return f"/sign-in?{urlencode(parameters)}" if parameters else "/sign-in"


class OpenSession(Answer):
    """A browser that is signed in, and until when."""

    id: str = Field(
        description="The beginning of its token's SHA-256, which lets nobody in.", examples=["9f86d081884c7d65"]
    )
    key: str
    created_at: datetime
    expires_at: datetime


def open_sessions(session: Session) -> list[OpenSession]:
    """The browsers that are signed in, the newest first."""
    row, key = models.BrowserSession, models.ApiKey
    query = select(_id_of().label("id"), key.name.label("key"), row.created_at, row.expires_at).join(
        key, key.id == row.key_id
    )
    query = query.where(row.expires_at > func.now(), key.revoked_at.is_(None)).order_by(row.created_at.desc())
    return [OpenSession.model_validate(found) for found in session.execute(query)]


def end_session(session: Session, session_id: str) -> None:
    """Ends an open session; raises NotFoundError."""
    row = models.BrowserSession
    ended = delete(row).where(_id_of() == session_id, row.expires_at > func.now()).returning(row.token_hash)
    if session.scalar(ended) is None:
        raise NotFoundError("open session", session_id)


def open_session(session: Session, key_token: str) -> str | None:
    """The token of a new session for the key's owner; None where no key in force has that token."""
    owner = keys.find_key(session, key_token)
    return None if owner is None else session_of(session, owner)


def session_of(session: Session, owner: TokenOwner) -> str:
    """The token of a new session of that owner."""
    session.execute(delete(models.BrowserSession).where(models.BrowserSession.expires_at < func.now()))
    token = keys.new_token()
    ends = datetime.now(UTC) + LASTS
    row = models.BrowserSession(
        token_hash=keys.hash_of(token),
        key_id=owner.caller.key_id,
        expires_at=min(ends, owner.expires_at) if owner.expires_at else ends,
    )
    session.add(row)
    return token


def find_session(session: Session, token: str) -> TokenOwner | None:
    """The owner of the session; None where it has ended or its key is no longer in force."""
    row = session.scalars(
        select(models.BrowserSession)
        .options(joinedload(models.BrowserSession.key))
        .join(models.ApiKey)
        .where(
            models.BrowserSession.token_hash == keys.hash_of(token),
            models.BrowserSession.expires_at > func.now(),
            models.ApiKey.revoked_at.is_(None),
            or_(models.ApiKey.expires_at.is_(None), models.ApiKey.expires_at > func.now()),
        )
    ).first()
    if row is None:
        return None
    keys.touch(session, row.key)
    return TokenOwner(keys.caller_of(row.key), row.expires_at)


def close_session(session: Session, token: str) -> bool:
    """Ends the session; tells whether there was one, expired or not."""
    browser = models.BrowserSession
    ended = delete(browser).where(browser.token_hash == keys.hash_of(token)).returning(browser.token_hash)
    return session.scalar(ended) is not None


def _id_of() -> ColumnElement[str]:
    return func.left(models.BrowserSession.token_hash, 16)
