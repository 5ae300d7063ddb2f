"""Demand, the shelves that an API reads into memory first, and fitted predictors."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base
from tilewright.service.store.models.devices import DeviceModel


class Demand(Base):
    """A problem that callers requested on a device model while exactly it was not tuned, and how often.

    The problem is spelled out: it gets a row in `problems` when it is tuned, not when a caller without a key asks.
    """

    __tablename__ = "demand"
    __table_args__ = (
        CheckConstraint("count > 0", name="was_asked_for"),
        UniqueConstraint("device_model_id", "problem_hash"),
        Index(None, "count", "id"),
        Index(None, "device_model_id", "kernel", "last_asked_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    problem_hash: Mapped[str]
    kernel: Mapped[str]
    shape: Mapped[dict[str, Any]]
    dtype: Mapped[str]
    options: Mapped[dict[str, Any]]
    count: Mapped[int] = mapped_column(type_=BigInteger)
    first_asked_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_asked_at: Mapped[datetime] = mapped_column(server_default=func.now())

    device_model: Mapped[DeviceModel] = relationship(lazy="raise")


class AskedShelf(Base):
    """A kernel on a device model whose bests were requested: an API that starts reads them into memory first."""

    __tablename__ = "asked_shelves"

    kernel: Mapped[str] = mapped_column(primary_key=True)
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"), primary_key=True)
    asked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Predictor(Base):
    """The arrays of one fitted predictor, as an npz file without pickled objects; a cache that may be emptied."""

    __tablename__ = "predictors"
    __table_args__ = (Index(None, "series", "fitted_at"),)

    records_hash: Mapped[str] = mapped_column(primary_key=True)
    series: Mapped[str]
    arrays: Mapped[bytes]
    predictions: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    """By problem hash, what was predicted from it."""
    fitted_at: Mapped[datetime] = mapped_column(server_default=func.now())
