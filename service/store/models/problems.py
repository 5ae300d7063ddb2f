"""Kernels, the states of their sources, and the problems that they are tuned for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Index,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base


class Kernel(Base):
    """A kernel as a worker last declared it."""

    __tablename__ = "kernels"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    declaration: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


class KernelVariant(Base):
    """One state of a variant's source; a changed source is a new row, so that results keep theirs."""

    __tablename__ = "kernel_variants"
    __table_args__ = (UniqueConstraint("kernel_id", "name", "source_hash"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernels.id"))
    name: Mapped[str]
    source_hash: Mapped[str]
    source: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Problem(Base):
    """A kernel with shape, dtype and options; `hash` is kernels.problem.Problem.hash."""

    __tablename__ = "problems"
    __table_args__ = (Index(None, "kernel_id", "dtype"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernels.id"))
    shape: Mapped[dict[str, Any]]
    dtype: Mapped[str]
    options: Mapped[dict[str, Any]]

    kernel: Mapped[Kernel] = relationship(lazy="raise")
