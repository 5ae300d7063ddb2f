"""Webhooks, which get a message when a job ends, and the delivery of every message."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, Index, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.access import Project
from tilewright.service.store.models.declarative import Base, by_value, uuid7


class DeliveryState(StrEnum):
    """The state of a message."""

    WAITING = "waiting"  # for its first attempt, or its next
    DELIVERED = "delivered"
    FAILED = "failed"  # given up


class Webhook(Base):
    """An address that gets a message for jobs that ended in one of `states`."""

    __tablename__ = "webhooks"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    url: Mapped[str]
    secret: Mapped[str]  # as it is: a signature needs it, a hash would not do
    states: Mapped[list[str]]
    project_id: Mapped[int | None] = mapped_column(ForeignKey("projects.id"))  # None: it hears of all projects' jobs
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    project: Mapped[Project | None] = relationship(lazy="raise")


class WebhookDelivery(Base):
    """One message about one job. An attempt is counted before it is sent, so that a late answer is recognised."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("webhook_id", "job_id"),  # a job ends once
        Index("ix_webhook_deliveries_due", "webhook_id", "next_at", postgresql_where=text("state = 'waiting'")),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid7)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"), index=True)
    state: Mapped[DeliveryState] = mapped_column(by_value(DeliveryState, "state"), server_default="waiting")
    attempts: Mapped[int] = mapped_column(server_default="0")
    next_at: Mapped[datetime] = mapped_column(server_default=func.now())
    status_code: Mapped[int | None]  # of the last answer
    error: Mapped[str | None]  # of the last attempt
    created_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    delivered_at: Mapped[datetime | None]

    webhook: Mapped[Webhook] = relationship(lazy="raise")
