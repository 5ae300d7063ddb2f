"""Remarks on results: claims with a worker's finding, notes, and saved views of the dashboard."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base, by_value
from tilewright.service.store.models.devices import DeviceModel
from tilewright.service.store.models.jobs import TuningJob
from tilewright.service.store.models.problems import Problem


class ClaimState(StrEnum):
    """A worker's verdict on a claim: none yet, the configuration is wrong, or it is right."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    REFUTED = "refuted"


class Claim(Base):
    """A client's report that a configuration gave wrong results, or its times. Only what `job` finds counts."""

    __tablename__ = "claims"
    __table_args__ = (
        Index(None, "job_id"),
        Index(None, "created_at"),
        Index(None, "problem_id", "device_model_id"),
        Index("ix_claims_confirmed", "device_model_id", postgresql_where=text("state = 'confirmed'")),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    key_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("api_keys.id"))  # of the client; None: this machine
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    driver: Mapped[str]  # of the client
    configuration: Mapped[dict[str, Any]]  # with its variant, as in trials
    source_hash: Mapped[str]
    seen: Mapped[str]  # in the client's words
    seen_ms: Mapped[dict[str, Any] | None]  # its times beside the library's; None: it was wrong
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"))  # that verifies
    state: Mapped[ClaimState] = mapped_column(by_value(ClaimState, "state"), server_default="open")
    found: Mapped[str | None]  # in the worker's words
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    settled_at: Mapped[datetime | None]

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    job: Mapped[TuningJob] = relationship(lazy="raise")


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
