"""Studies and the jobs that add to them."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base, by_value, uuid7
from tilewright.service.store.models.devices import Device, DeviceModel, Environment
from tilewright.service.store.models.problems import Problem


class JobState(StrEnum):
    """The state of a tuning job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Study(Base):
    """All trials for one problem on one device model in one environment; several jobs may add to it."""

    __tablename__ = "studies"
    __table_args__ = (UniqueConstraint("problem_id", "device_model_id", "environment_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    next_number: Mapped[int] = mapped_column(server_default="0")  # leased in the transaction that adds the trial
    space_hash: Mapped[str]
    space_size: Mapped[int]
    space_by_source: Mapped[dict[str, Any] | None]  # configurations of each source hash, when it was last tuned
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment] = relationship(lazy="raise")


class TuningJob(Base):
    """A request to add to a study. Only the worker with the newest `epoch` may write; older ones are fenced off."""

    __tablename__ = "tuning_jobs"
    __table_args__ = (
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority_is_a_digit"),
        CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        Index(None, "state", "created_at"),
        Index(None, "project_id", "id"),
        # Two identical requests at the same moment: the second finds the first one's row instead of adding another.
        Index(
            "uq_tuning_jobs_open_coalesce_hash",
            "coalesce_hash",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running') AND NOT cancel_requested"),
        ),
        Index("ix_tuning_jobs_open", "state", postgresql_where=text("state IN ('queued', 'running')")),
        Index("ix_tuning_jobs_samples_kept", "finished_at", postgresql_where=text("samples_pruned_at IS NULL")),
        # One job for each problem and due time, whichever process fires.
        Index(
            "uq_tuning_jobs_schedule_fire",
            "schedule_id",
            "fire_at",
            "problem_id",
            unique=True,
            postgresql_where=text("schedule_id IS NOT NULL"),
        ),
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid7)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    device_model_id: Mapped[int | None] = mapped_column(ForeignKey("device_models.id"))
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))  # set: only this one
    study_id: Mapped[int | None] = mapped_column(ForeignKey("studies.id"), index=True)
    queue: Mapped[str]
    compiler: Mapped[str | None]
    sampler: Mapped[str] = mapped_column(server_default="tpe")
    seed: Mapped[int] = mapped_column(server_default="0")
    variants: Mapped[list[str] | None]
    starts: Mapped[list[dict[str, Any]] | None]  # to try first: variant and parameters of each
    verifies: Mapped[bool] = mapped_column(server_default=text("false"))  # only the first start, for claims; no search
    budget_trials: Mapped[int | None]
    budget_seconds: Mapped[float | None]
    budget_target_ms: Mapped[float | None]
    priority: Mapped[int] = mapped_column(server_default="5")  # 0 to 9, the highest first
    turn: Mapped[int] = mapped_column(server_default="0")  # within its priority, the lowest first: jobs/turns.py
    state: Mapped[JobState] = mapped_column(by_value(JobState, "state"), server_default="queued")
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    epoch: Mapped[int] = mapped_column(server_default="0")
    crashes: Mapped[int] = mapped_column(server_default="0")  # starts that died since the last recorded trial
    devices_lost: Mapped[int] = mapped_column(server_default="0")  # that stopped answering under this job
    revision: Mapped[int] = mapped_column(server_default="0")  # grows with every change; its newest event
    state_revision: Mapped[int] = mapped_column(server_default="0")  # of the last change of state or phase
    engine_id: Mapped[int | None] = mapped_column(type_=BigInteger, index=True)
    worker: Mapped[str | None]
    coalesce_hash: Mapped[str | None]  # equal for identical requests: an open one is joined instead of doubled
    trials_done: Mapped[int] = mapped_column(server_default="0")
    phase: Mapped[str] = mapped_column(server_default="queued")  # queued, preparing, searching, finals, finished
    elapsed_s: Mapped[float] = mapped_column(server_default="0")  # measuring seconds over all epochs
    error: Mapped[str | None]
    result: Mapped[dict[str, Any] | None]  # gains, finalists, library, stopped_by
    schedule_id: Mapped[int | None] = mapped_column(ForeignKey("schedules.id", ondelete="SET NULL"))
    fire_at: Mapped[datetime | None]  # the due time of the schedule that it was made for
    key_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("api_keys.id"))  # that asked for it
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), server_default="1")  # of that key
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    samples_pruned_at: Mapped[datetime | None]  # its trials have been gone through (fleet/retention.py)

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel | None] = relationship(lazy="raise")
    device: Mapped[Device | None] = relationship(lazy="raise")
    study: Mapped[Study | None] = relationship(lazy="raise")


class IdempotencyKey(Base):
    """A caller's idempotency key and its job: the same key with another body is refused. One job may have several."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index(None, "created_at"),)

    # The name of the caller's access key; empty: this machine.
    owner: Mapped[str] = mapped_column(primary_key=True, server_default="")
    key: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str]
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ChoreRound(Base):
    """The time when a process last began the chores of maintenance: one row, which all processes share."""

    __tablename__ = "chore_rounds"

    id: Mapped[int] = mapped_column(primary_key=True)
    begun_at: Mapped[datetime]
