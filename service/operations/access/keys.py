"""Access keys: created, shown once, looked up by their hash, rotated, revoked."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import Field
from sqlalchemy import Select, and_, func, or_, select, update
from sqlalchemy.orm import Session, joinedload
from sqlalchemy.sql import ColumnElement

from tilewright.service.errors import ConflictError, NotFoundError
from tilewright.service.operations.access.projects import project_id
from tilewright.service.operations.answers import Answer
from tilewright.service.operations.caller import Caller, Ceilings, Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.store import models
from tilewright.service.store.forced import forced

TOKEN_BYTES = 32
"""256 random bits cannot be guessed from their hash: one round of SHA-256 is enough; slow hashes are for passwords."""

MARK = "tw_"
"""The beginning of every token, so that secret scanners and people recognise one."""

PREFIX_LENGTH = 9
USED_EVERY = timedelta(minutes=1)
"""How exact `last_used_at` is: writing it at every request would be the slowest part of most of them."""


class KeyAnswer(Answer):
    """A key, without its token."""

    id: UUID
    name: str
    prefix: str = Field(description="How the token begins.", examples=["tw_Zk3Rbq"])
    scope: Scope
    project: str = Field(description="It belongs to this one, with its jobs and schedules.", examples=["default"])
    max_trials: int | None = Field(description="Largest trial budget of a job; null: that of the settings.")
    max_seconds: float | None = Field(description="Largest time budget of a job; null: that of the settings.")
    max_open_jobs: int | None = Field(description="Most jobs queued or running at a time; null: no limit.")
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    in_force: bool


class NewKeyAnswer(KeyAnswer):
    """A key with its token, which is shown this once."""

    token: str = Field(description="Send it as `Authorization: Bearer …`. It cannot be shown again.")


@dataclass(frozen=True)
class TokenOwner:
    """The caller that a token belongs to, and until when that may be cached."""

    caller: Caller
    expires_at: datetime | None


def create_key(session: Session, request: KeyRequest) -> NewKeyAnswer:
    """The key with its token; raises ConflictError where one of that name is in force, InvalidRequestError."""
    if _in_force(session, request.name):
        raise ConflictError(f"A key named {request.name!r} is in force; rotate or revoke it, or choose another name.")
    expires_at = None if request.expires_days is None else _now() + timedelta(days=request.expires_days)
    return _add(
        session,
        name=request.name,
        scope=request.scope,
        ceilings=Ceilings(request.max_trials, request.max_seconds, request.max_open_jobs),
        expires_at=expires_at,
        project_id=project_id(session, request.project),
    )


def keys(session: Session) -> list[KeyAnswer]:
    """Every key, by name and age, those out of force too."""
    rows = session.scalars(_loaded().order_by(models.ApiKey.name, models.ApiKey.id))
    return [_answer(row) for row in rows]


def rotate_key(session: Session, name: str, grace_s: float = 0.0) -> NewKeyAnswer:
    """A new key of the same name, scope and ceilings; the old one stays valid for `grace_s` seconds."""
    old = _named(session, name)[-1]
    made = _add(
        session,
        name=name,
        scope=Scope(old.scope),
        ceilings=Ceilings(old.max_trials, old.max_seconds, old.max_open_jobs),
        expires_at=old.expires_at,
        project_id=old.project_id,
    )
    end = _now() + timedelta(seconds=grace_s)
    old.expires_at = min(end, old.expires_at) if old.expires_at else end
    return made


def revoke_key(session: Session, name: str) -> list[KeyAnswer]:
    """Revokes the keys of that name, and their browser sessions with them; the revoked keys. It waits for nobody."""
    rows = _named(session, name)
    for row in rows:
        row.revoked_at = _now()
    session.flush()
    return [_answer(row) for row in rows]


def find_key(session: Session, token: str) -> TokenOwner | None:
    """The owner of the token; None where no key in force has it."""
    token_hash = hash_of(token)
    row = session.scalars(select(models.ApiKey).where(models.ApiKey.token_hash == token_hash, _is_in_force())).first()
    # The index has compared already; this comparison takes the same time whatever differs.
    if row is None or not hmac.compare_digest(row.token_hash, token_hash):
        return None
    touch(session, row)
    return TokenOwner(caller_of(row), row.expires_at)


def key_of_person(session: Session, name: str, scope: Scope, project: str) -> TokenOwner | None:
    """The owner of the key that stands for a person of a provider, with these rights; None where it was revoked.

    Nobody has its token: the person signs in at the provider, and its jobs and schedules belong to this key.
    """
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"key {name}", 0))))
    row = session.scalars(
        select(models.ApiKey).where(models.ApiKey.name == name).order_by(models.ApiKey.id.desc()).limit(1)
    ).first()
    if row is None:
        _add(
            session,
            name=name,
            scope=scope,
            ceilings=Ceilings(),
            expires_at=None,
            project_id=project_id(session, project),
        )
        return key_of_person(session, name, scope, project)
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= _now()):
        return None
    row.scope, row.project_id = scope.value, project_id(session, project)
    session.flush()
    touch(session, row)
    return TokenOwner(caller_of(row), row.expires_at)


def touch(session: Session, row: models.ApiKey) -> None:
    """Records that the key was used, at most once a minute."""
    if row.last_used_at is None or _now() - row.last_used_at > USED_EVERY:
        session.execute(update(models.ApiKey).where(models.ApiKey.id == row.id).values(last_used_at=func.now()))


def caller_of(row: models.ApiKey) -> Caller:
    """The caller that uses this key."""
    ceilings = Ceilings(row.max_trials, row.max_seconds, row.max_open_jobs)
    return Caller(f"key {row.name}", Scope(row.scope), row.id, ceilings, row.name, row.project_id)


def hash_of(token: str) -> str:
    """SHA-256 of a token, hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    """A token that nobody can guess."""
    return MARK + secrets.token_urlsafe(TOKEN_BYTES)


def _add(
    session: Session, *, name: str, scope: Scope, ceilings: Ceilings, expires_at: datetime | None, project_id: int
) -> NewKeyAnswer:
    token = new_token()
    row = models.ApiKey(
        name=name,
        token_hash=hash_of(token),
        prefix=token[:PREFIX_LENGTH],
        scope=scope.value,
        max_trials=ceilings.max_trials,
        max_seconds=ceilings.max_seconds,
        max_open_jobs=ceilings.max_open_jobs,
        expires_at=expires_at,
        project_id=project_id,
    )
    session.add(row)
    session.flush()
    session.refresh(row, ["project"])
    return NewKeyAnswer(**_answer(row).model_dump(), token=token)


def _named(session: Session, name: str) -> Sequence[models.ApiKey]:
    """The keys of that name in force, the newest last; raises NotFoundError where there is none."""
    rows = _in_force(session, name)
    if not rows:
        raise NotFoundError("key in force", name, sorted({key.name for key in keys(session) if key.in_force}))
    return rows


def _in_force(session: Session, name: str) -> Sequence[models.ApiKey]:
    query = _loaded().where(models.ApiKey.name == name, _is_in_force()).order_by(models.ApiKey.id)
    with forced(session):
        # NO KEY UPDATE: rows that refer to a key, as those of its schedules do, never stand in the way.
        return session.scalars(query.with_for_update(key_share=True, of=models.ApiKey)).all()


def _loaded() -> Select[models.ApiKey]:
    return select(models.ApiKey).options(joinedload(models.ApiKey.project, innerjoin=True))


def _is_in_force() -> ColumnElement[bool]:
    key = models.ApiKey
    return and_(key.revoked_at.is_(None), or_(key.expires_at.is_(None), key.expires_at > func.now()))


def _answer(row: models.ApiKey) -> KeyAnswer:
    return KeyAnswer.of_row(
        row,
        project=row.project.name,
        in_force=row.revoked_at is None and (row.expires_at is None or row.expires_at > _now()),
    )


def _now() -> datetime:
    return datetime.now(UTC)
