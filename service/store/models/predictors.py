"""Fitted predictors, kept by a hash of the records that they were fitted to."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, func
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.service.store.models.declarative import Base


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
