"""Access: keys, browser sessions, and the record of every change."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Identity, Index, func
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base, uuid7


class Project(Base):
    """A team's share of the service: its keys, with their jobs and schedules, and quotas of all of them together.

    None: each key has the quotas of the settings.
    """

    __tablename__ = "projects"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    max_open_jobs: Mapped[int | None]
    max_queued_seconds: Mapped[float | None]
    max_schedules: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Base):
    """A key: its hash, what it may do until when, and its ceilings (None: those of the settings)."""

    __tablename__ = "api_keys"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid7)
    name: Mapped[str] = mapped_column(index=True)  # one key of a name is in force at a time, except while it rotates
    token_hash: Mapped[str] = mapped_column(unique=True)  # SHA-256 of the token, hexadecimal
    prefix: Mapped[str]  # the token's beginning, so that people can tell keys apart
    scope: Mapped[str]
    max_trials: Mapped[int | None]
    max_seconds: Mapped[float | None]
    max_open_jobs: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), server_default="1")

    project: Mapped[Project] = relationship(lazy="raise")


class BrowserSession(Base):
    """A browser that was signed in with a key, until it signs out or the session expires; it has the key's rights."""

    __tablename__ = "browser_sessions"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(index=True)

    key: Mapped[ApiKey] = relationship(lazy="raise")


class AuditEntry(Base):
    """One change, with its caller, request and tables. It is written in the change's own transaction."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index(None, "at"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    actor: Mapped[str]  # "key NAME", "this machine", "command line"
    key_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("api_keys.id"))
    action: Mapped[str]  # the request: "POST /v1/jobs", or the command
    request_id: Mapped[str | None]
    changed: Mapped[dict[str, Any]]  # rows written, by table
