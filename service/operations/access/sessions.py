"""Browser sessions: a key shown once, then a cookie that may do what the key may."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from urllib.parse import urlencode

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.access import keys
from tilewright.service.operations.access.keys import TokenOwner
from tilewright.service.store import models

COOKIE = "tilewright_session"
LASTS = timedelta(hours=12)
"""A working day; then the key is shown again."""

_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


class SignInProblem(StrEnum):
    """Why the form is shown again; its value stands in the address."""

    WRONG_KEY = "wrong-key"
    TOO_OFTEN = "too-often"


def own_path(wanted: str) -> str:
    """The address to go on to after signing in: the wanted one where it is of this server, else the first page."""
    return wanted if _OWN_PATH.fullmatch(wanted) else "/"


def sign_in_path(wanted: str = "/", problem: SignInProblem | None = None) -> str:
    """The address of the form that leads on to the wanted one, and says what went wrong."""
    said = {"next": wanted} if wanted != "/" else {}
    if problem:
        said["problem"] = problem.value
    return f"/sign-in?{urlencode(said)}" if said else "/sign-in"


def open_session(session: Session, key_token: str) -> str | None:
    """The token of a new session for the key's owner; None where no key in force has that token."""
    found = keys.find_key(session, key_token)
    if found is None:
        return None
    session.execute(delete(models.BrowserSession).where(models.BrowserSession.expires_at < func.now()))
    token = keys.new_token()
    ends = datetime.now(UTC) + LASTS
    row = models.BrowserSession(
        token_hash=keys.hash_of(token),
        key_id=found.caller.key_id,
        expires_at=min(ends, found.expires_at) if found.expires_at else ends,
    )
    session.add(row)
    return token


def find_session(session: Session, token: str) -> TokenOwner | None:
    """Whose session it is; None where it is over, or its key is not in force any more."""
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
    """Ends it, and whether there was one; that it is over already is no matter."""
    browser = models.BrowserSession
    ended = delete(browser).where(browser.token_hash == keys.hash_of(token)).returning(browser.token_hash)
    return session.scalar(ended) is not None
