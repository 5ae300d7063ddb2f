"""Compilations that jobs offer to compile workers of other hosts, those workers, and the cubins that they made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, func, text
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.service.store.models.declarative import Base

MOST_SOURCE_BYTES = 4 << 20
"""The catalogue's longest source has 70 KB with its headers."""
MOST_FACTS_BYTES = 64 << 10
MOST_CUBIN_BYTES = 8 << 20
"""The catalogue's cubins have 20 to 60 KB."""


class CompileWorker(Base):
    """A compile worker; `heartbeat_at` is NULL once it has ended in order."""

    __tablename__ = "compile_workers"
    __table_args__ = (CheckConstraint("octet_length(name) <= 255", name="name_is_short"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    processes: Mapped[int]
    compiler_version: Mapped[str]
    signer: Mapped[str]  # the SHA-256 of its public key
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    heartbeat_at: Mapped[datetime | None] = mapped_column(server_default=func.now())
    refused: Mapped[int] = mapped_column(server_default="0")  # its cubins that a job did not believe


class CompileSource(Base):
    """A source with its headers in it, once for the many configurations that are compiled from it."""

    __tablename__ = "compile_sources"
    __table_args__ = (CheckConstraint(f"octet_length(source) <= {MOST_SOURCE_BYTES}", name="source_is_short"),)

    hash: Mapped[str] = mapped_column(primary_key=True)  # SHA-256
    source: Mapped[str]
    offered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class CompileRequest(Base):
    """A compilation that a job offers. Whoever increases `epoch` has it until `leased_until`, and alone may end it."""

    __tablename__ = "compile_requests"
    __table_args__ = (
        CheckConstraint(f"octet_length(facts::text) <= {MOST_FACTS_BYTES}", name="facts_are_short"),
        Index("ix_compile_requests_open", "compiler_version", "offered_at", postgresql_where=text("ended_at IS NULL")),
        Index(None, "offered_at"),
    )

    key: Mapped[str] = mapped_column(primary_key=True)  # of the cubin, as in the caches on disk
    source_hash: Mapped[str] = mapped_column(ForeignKey("compile_sources.hash"), index=True)
    facts: Mapped[dict[str, Any]]  # definitions, architecture, entry, flags
    compiler_version: Mapped[str]
    offered_at: Mapped[datetime] = mapped_column(server_default=func.now())
    worker: Mapped[str | None] = mapped_column(ForeignKey("compile_workers.name"), index=True)
    epoch: Mapped[int] = mapped_column(server_default="0")
    leased_until: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    refusal: Mapped[str | None]  # why there is no cubin


class CompiledCubin(Base):
    """What a compile worker made of a request, with its signature; used only where the signature is trusted."""

    __tablename__ = "compiled_cubins"
    __table_args__ = (
        CheckConstraint(f"octet_length(body) <= {MOST_CUBIN_BYTES}", name="body_is_short"),
        CheckConstraint("octet_length(signature) <= 64", name="signature_is_short"),
    )

    key: Mapped[str] = mapped_column(ForeignKey("compile_requests.key", ondelete="CASCADE"), primary_key=True)
    worker: Mapped[str] = mapped_column(ForeignKey("compile_workers.name"), index=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    signature: Mapped[bytes] = mapped_column(LargeBinary)
    stored_at: Mapped[datetime] = mapped_column(server_default=func.now())
