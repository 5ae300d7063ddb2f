"""Tables of families: which configuration serves which sizes of an axis."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base
from tilewright.service.store.models.devices import DeviceModel, Environment
from tilewright.service.store.models.problems import Problem


class FamilyTable(Base):
    """The result of tuning a family, as one document. The current one is not superseded.

    `problem` is the family with its range; `family_hash`, `Family.hash`, is the same for every range of it.
    """

    __tablename__ = "family_tables"
    __table_args__ = (
        CheckConstraint("0 < low AND low <= high", name="is_a_range"),
        Index(
            "ix_family_tables_current",
            "problem_id",
            "device_model_id",
            "environment_id",
            unique=True,
            postgresql_where=text("superseded_by_id IS NULL"),
        ),
        Index(None, "family_hash"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    family_hash: Mapped[str]
    low: Mapped[int]
    high: Mapped[int]
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    job_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("tuning_jobs.id"))  # None: imported
    document: Mapped[dict[str, Any]]  # `tuner/families/table.py`
    made_at: Mapped[datetime] = mapped_column(server_default=func.now())
    superseded_by_id: Mapped[int | None] = mapped_column(
        ForeignKey("family_tables.id", deferrable=True, initially="DEFERRED")
    )

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment] = relationship(lazy="raise")
