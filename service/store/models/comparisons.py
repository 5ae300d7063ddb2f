"""Comparisons of the bests before and after a schedule's jobs."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base
from tilewright.service.store.models.jobs import TuningJob
from tilewright.service.store.models.results import BestConfiguration
from tilewright.service.store.models.schedules import Schedule


class Comparison(Base):
    """The best before a job of a schedule and the one after it; no verdict while the job is open."""

    __tablename__ = "comparisons"
    __table_args__ = (
        CheckConstraint("verdict IN ('better', 'same', 'worse', 'missing')", name="verdict_is_a_word"),
        CheckConstraint("(verdict IS NULL) = (compared_at IS NULL)", name="verdict_when_compared"),
        UniqueConstraint("job_id"),
        Index(None, "schedule_id", "id"),
        Index("ix_comparisons_waiting", "id", postgresql_where=text("verdict IS NULL")),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"))
    before_id: Mapped[int | None] = mapped_column(ForeignKey("best_configurations.id"))
    after_id: Mapped[int | None] = mapped_column(ForeignKey("best_configurations.id"))
    verdict: Mapped[str | None]
    ratio: Mapped[float | None]  # time after over time before: below 1 is faster
    threshold: Mapped[float | None]  # the part by which it must differ from 1 to be told from noise
    reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    compared_at: Mapped[datetime | None]

    schedule: Mapped[Schedule] = relationship(lazy="raise")
    job: Mapped[TuningJob] = relationship(lazy="raise")
    before: Mapped[BestConfiguration | None] = relationship(foreign_keys=[before_id], lazy="raise")
    after: Mapped[BestConfiguration | None] = relationship(foreign_keys=[after_id], lazy="raise")
