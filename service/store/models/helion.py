"""Results of Helion's own search, kept for Helion."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, func
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.service.store.models.declarative import Base


class HelionEntry(Base):
    """A text of Helion's cache by its key: a configuration without a time, which nobody here measured or verified."""

    __tablename__ = "helion_entries"
    __table_args__ = (Index(None, "stored_by", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)  # a new one each time it is stored: the order of lists
    key: Mapped[str] = mapped_column(unique=True)
    data: Mapped[str]
    stored_by: Mapped[str]
    stored_at: Mapped[datetime] = mapped_column(server_default=func.now())
