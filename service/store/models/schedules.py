"""Schedules, what they tune and when they fired, comparisons of the bests around their jobs, and demand."""

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

from tilewright.service.store.models.declarative import Base, by_value
from tilewright.service.store.models.devices import Device, DeviceModel
from tilewright.service.store.models.jobs import TuningJob
from tilewright.service.store.models.problems import Problem
from tilewright.service.store.models.results import BestConfiguration


class Overlap(StrEnum):
    """The choices of a schedule at a due time while an earlier job of it is open."""

    SKIP = "skip"
    QUEUE = "queue"


class ScheduleTarget(StrEnum):
    """The target of a schedule at a due time: the problems it lists, or those that are stale, improvable or in
    demand.
    """

    PROBLEMS = "problems"
    STALE = "stale"
    IMPROVABLE = "improvable"
    DEMAND = "demand"


class FireOutcome(StrEnum):
    """The outcome of a due time."""

    FIRED = "fired"
    SKIPPED = "skipped"


class Schedule(Base):
    """A target and its due times. `next_at` only grows, so that no due time can fire twice."""

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        CheckConstraint("enabled = (next_at IS NOT NULL)", name="due_when_enabled"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority_is_a_digit"),
        CheckConstraint("(target = 'problems') = (top IS NULL)", name="top_where_it_looks"),
        Index(None, "next_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    body_hash: Mapped[str]  # of the request: the same one again is answered with this row
    cron: Mapped[str]
    time_zone: Mapped[str]
    target: Mapped[ScheduleTarget] = mapped_column(by_value(ScheduleTarget, "target"), server_default="problems")
    top: Mapped[int | None]  # most problems of one fire, where the target is looked for
    kernel: Mapped[str | None]  # set: only problems of this one are looked for
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))  # set: only this one
    budget_trials: Mapped[int | None]
    budget_seconds: Mapped[float | None]
    budget_target_ms: Mapped[float | None]
    variants: Mapped[list[str] | None]
    compiler: Mapped[str | None]
    priority: Mapped[int] = mapped_column(server_default="5")
    overlap: Mapped[Overlap] = mapped_column(by_value(Overlap, "overlap"), server_default="skip")
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    next_at: Mapped[datetime | None]
    last_fire_at: Mapped[datetime | None]  # newest due time dealt with; run now leaves it alone
    key_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("api_keys.id"))  # that made it
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), server_default="1")  # of that key
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    device: Mapped[Device | None] = relationship(lazy="raise")


class ScheduledProblem(Base):
    """A problem that a schedule tunes each time, in the order of the request."""

    __tablename__ = "schedule_problems"
    __table_args__ = (UniqueConstraint("schedule_id", "problem_id"),)

    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))

    problem: Mapped[Problem] = relationship(lazy="raise")


class ScheduleFire(Base):
    """A due time that was handled, and its outcome. Old ones are deleted: `schedules.last_fire_at` is enough."""

    __tablename__ = "schedule_fires"
    __table_args__ = (
        UniqueConstraint("schedule_id", "fire_at"),
        Index(None, "schedule_id", "id"),
        Index(None, "created_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    fire_at: Mapped[datetime]
    manual: Mapped[bool] = mapped_column(server_default=text("false"))  # asked for by run now
    outcome: Mapped[FireOutcome] = mapped_column(by_value(FireOutcome, "outcome"))
    jobs: Mapped[int]
    reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


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


class Demand(Base):
    """A problem that callers requested on a device model while it was not tuned itself, and how often.

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
    """Predictions made from it, by problem hash."""
    fitted_at: Mapped[datetime] = mapped_column(server_default=func.now())
