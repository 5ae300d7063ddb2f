"""What people write down beside results: notes on studies, and views of the dashboard under a name."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.service.store.models.declarative import Base


class StudyNote(Base):
    """A note on a study; with a result it acknowledges that this best is slower than the one before it."""

    __tablename__ = "study_notes"
    __table_args__ = (Index(None, "study_id"), Index(None, "acknowledged_result_id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    acknowledged_result_id: Mapped[int | None] = mapped_column(ForeignKey("best_configurations.id"))
    text: Mapped[str]
    written_by: Mapped[str]
    written_at: Mapped[datetime] = mapped_column(server_default=func.now())


class SavedView(Base):
    """An address of the dashboard, with its filters and order, under a name."""

    __tablename__ = "saved_views"

    name: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    saved_by: Mapped[str]
    saved_at: Mapped[datetime] = mapped_column(server_default=func.now())
