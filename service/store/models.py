"""The tables. Results are keyed by device model, problem and environment; history is kept, never overwritten."""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Index,
    MetaData,
    String,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tilewright.tuner.outcome import Outcome

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Every table of ours."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own declaration
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: ARRAY(String),
        list[float]: ARRAY(Double),
        float: Double,
    }


def uuid7() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): sorts by creation time, so that pages have a stable order."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


class JobState(StrEnum):
    """Where a tuning job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Overlap(StrEnum):
    """What a schedule does at a due time while an earlier job of its own is open."""

    SKIP = "skip"
    QUEUE = "queue"


class FireOutcome(StrEnum):
    """What came of a due time."""

    FIRED = "fired"
    SKIPPED = "skipped"


class DeviceState(StrEnum):
    """Whether a device may be given work."""

    READY = "ready"
    LOST = "lost"  # it stopped answering twice in a row; a person must look


def _by_value(enum: type[StrEnum], name: str) -> Enum:
    return Enum(
        enum,
        name=name,
        native_enum=False,
        length=32,
        create_constraint=True,
        values_callable=lambda e: [m.value for m in e],
    )


class DeviceModel(Base):
    """A product, with its limits and peaks (`details`: tuner.device.DeviceModel as JSON)."""

    __tablename__ = "device_models"

    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    kind: Mapped[str]
    compute_capability: Mapped[str]
    multiprocessors: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(type_=BigInteger)
    details: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Device(Base):
    """One physical device, by UUID, on a host that last spoke at `heartbeat_at`."""

    __tablename__ = "devices"

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(unique=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    host: Mapped[str]
    ordinal: Mapped[int] = mapped_column(server_default="0")
    state: Mapped[DeviceState] = mapped_column(_by_value(DeviceState, "state"), server_default="ready")
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.now())

    model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")


class Environment(Base):
    """Driver, toolkit, compiler, runtime, clocks; `hash` is tuner.device.Environment.hash."""

    __tablename__ = "environments"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    driver: Mapped[str]
    toolkit: Mapped[str]
    compiler: Mapped[str]
    compiler_version: Mapped[str]
    runtime: Mapped[str]
    clocks: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Kernel(Base):
    """A kernel as a worker last declared it."""

    __tablename__ = "kernels"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    declaration: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


class KernelVariant(Base):
    """One state of a variant's source; a changed source is a new row, so that results keep theirs."""

    __tablename__ = "kernel_variants"
    __table_args__ = (UniqueConstraint("kernel_id", "name", "source_hash"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernels.id"))
    name: Mapped[str]
    source_hash: Mapped[str]
    source: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Problem(Base):
    """Kernel, shape, dtype, options; `hash` is kernels.problem.Problem.hash."""

    __tablename__ = "problems"
    __table_args__ = (Index(None, "kernel_id", "dtype"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernels.id"))
    shape: Mapped[dict[str, Any]]
    dtype: Mapped[str]
    options: Mapped[dict[str, Any]]

    kernel: Mapped[Kernel] = relationship(lazy="raise")


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
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment] = relationship(lazy="raise")


class TuningJob(Base):
    """A request to add to a study. Whoever holds the newest `epoch` is right; older holders are fenced off."""

    __tablename__ = "tuning_jobs"
    __table_args__ = (
        CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        Index(None, "state", "created_at"),
        # Two identical requests at the same moment: the second finds the first one's row instead of adding another.
        Index(
            "uq_tuning_jobs_open_coalesce_hash",
            "coalesce_hash",
            unique=True,
            postgresql_where=text("state IN ('queued', 'running') AND NOT cancel_requested"),
        ),
        Index("ix_tuning_jobs_open", "state", postgresql_where=text("state IN ('queued', 'running')")),
        # One job for each problem and due time, whoever fires.
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
    budget_trials: Mapped[int | None]
    budget_seconds: Mapped[float | None]
    budget_target_ms: Mapped[float | None]
    priority: Mapped[int] = mapped_column(server_default="0")
    state: Mapped[JobState] = mapped_column(_by_value(JobState, "state"), server_default="queued")
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    epoch: Mapped[int] = mapped_column(server_default="0")
    crashes: Mapped[int] = mapped_column(server_default="0")  # starts that died since the last recorded trial
    revision: Mapped[int] = mapped_column(server_default="0")  # grows with every change; its newest event
    state_revision: Mapped[int] = mapped_column(server_default="0")  # of the last change of state or phase
    engine_id: Mapped[int | None] = mapped_column(type_=BigInteger)
    worker: Mapped[str | None]
    coalesce_hash: Mapped[str | None]  # equal for identical requests: an open one is joined instead of doubled
    trials_done: Mapped[int] = mapped_column(server_default="0")
    phase: Mapped[str] = mapped_column(server_default="queued")  # queued, preparing, searching, finals, finished
    elapsed_s: Mapped[float] = mapped_column(server_default="0")  # measuring seconds over all epochs
    error: Mapped[str | None]
    result: Mapped[dict[str, Any] | None]  # gains, finalists, library, stopped_by
    schedule_id: Mapped[int | None] = mapped_column(ForeignKey("schedules.id", ondelete="SET NULL"))
    fire_at: Mapped[datetime | None]  # the due time of the schedule that it was made for
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel | None] = relationship(lazy="raise")
    device: Mapped[Device | None] = relationship(lazy="raise")
    study: Mapped[Study | None] = relationship(lazy="raise")


class Schedule(Base):
    """What to tune at which times. `next_at` only ever grows, so that no due time can come twice."""

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("budget_trials > 0 OR budget_seconds > 0 OR budget_target_ms > 0", name="has_a_budget"),
        CheckConstraint("enabled = (next_at IS NOT NULL)", name="due_when_enabled"),
        Index(None, "next_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    body_hash: Mapped[str]  # of the request: the same one again is answered with this row
    cron: Mapped[str]
    time_zone: Mapped[str]
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))  # set: only this one
    budget_trials: Mapped[int | None]
    budget_seconds: Mapped[float | None]
    budget_target_ms: Mapped[float | None]
    variants: Mapped[list[str] | None]
    compiler: Mapped[str | None]
    priority: Mapped[int] = mapped_column(server_default="0")
    overlap: Mapped[Overlap] = mapped_column(_by_value(Overlap, "overlap"), server_default="skip")
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    next_at: Mapped[datetime | None]
    last_fire_at: Mapped[datetime | None]  # newest due time dealt with; run now leaves it alone
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    device: Mapped[Device | None] = relationship(lazy="raise")


class ScheduledProblem(Base):
    """A problem that a schedule tunes each time, in the order in which they were named."""

    __tablename__ = "schedule_problems"
    __table_args__ = (UniqueConstraint("schedule_id", "problem_id"),)

    schedule_id: Mapped[int] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))

    problem: Mapped[Problem] = relationship(lazy="raise")


class ScheduleFire(Base):
    """A due time that was dealt with, and how. Old ones are removed: `schedules.last_fire_at` remembers enough."""

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
    outcome: Mapped[FireOutcome] = mapped_column(_by_value(FireOutcome, "outcome"))
    jobs: Mapped[int]
    reason: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class IdempotencyKey(Base):
    """A caller's key and what it stands for: the same key with another body is refused. Several may name one job."""

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(primary_key=True)
    body_hash: Mapped[str]
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Trial(Base):
    """One configuration compiled, checked and timed; a time only when measured."""

    __tablename__ = "trials"
    __table_args__ = (
        CheckConstraint("(outcome = 'measured') = (time_ms IS NOT NULL)", name="time_only_when_measured"),
        CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'", name="time_is_a_time"),
        UniqueConstraint("study_id", "number"),
        UniqueConstraint("study_id", "configuration_hash"),
        Index(None, "study_id", "time_ms"),
        Index(None, "job_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    number: Mapped[int]
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"))
    epoch: Mapped[int]
    job_revision: Mapped[int]  # of the job when this trial was added: the trial's event id
    device_id: Mapped[int | None] = mapped_column(ForeignKey("devices.id"))
    kernel_variant_id: Mapped[int] = mapped_column(ForeignKey("kernel_variants.id"))
    configuration: Mapped[dict[str, Any]]
    configuration_hash: Mapped[str]  # over variant, source hash and values
    outcome: Mapped[Outcome] = mapped_column(_by_value(Outcome, "outcome"))
    time_ms: Mapped[float | None]  # the ranking median
    ranking_l2: Mapped[str]
    warm_ms: Mapped[float | None]
    warm_spread_ms: Mapped[float | None]
    warm_samples_ms: Mapped[list[float] | None]
    cold_ms: Mapped[float | None]
    cold_spread_ms: Mapped[float | None]
    cold_samples_ms: Mapped[list[float] | None]
    gflops: Mapped[float | None]
    gb_per_s: Mapped[float | None]
    registers: Mapped[int | None]
    shared_bytes: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    occupancy: Mapped[float | None]
    bound_ratio: Mapped[float | None]
    compile_ms: Mapped[float | None]
    clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    log: Mapped[str] = mapped_column(server_default="")
    started_s: Mapped[float] = mapped_column(server_default="0")
    wall_s: Mapped[float] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    study: Mapped[Study] = relationship(lazy="raise")
    kernel_variant: Mapped[KernelVariant] = relationship(lazy="raise")


class BestConfiguration(Base):
    """The settled winner of a study at one time. The current one is neither superseded nor retracted."""

    __tablename__ = "best_configurations"
    __table_args__ = (
        Index(
            "ix_best_configurations_current",
            "problem_id",
            "device_model_id",
            "environment_id",
            unique=True,
            postgresql_where=text("superseded_by_id IS NULL AND retracted_at IS NULL"),
        ),
        CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'", name="time_is_a_time"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problems.id"))
    device_model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"), index=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tuning_jobs.id"))
    time_ms: Mapped[float]  # of the finals: interleaved with the library
    ci_low_ms: Mapped[float]
    ci_high_ms: Mapped[float]
    l2: Mapped[str]
    gflops: Mapped[float]
    gb_per_s: Mapped[float]
    roof_ratio: Mapped[float | None]
    default_ms: Mapped[float | None]
    slowest_ms: Mapped[float | None]
    library_name: Mapped[str | None]
    library_ms: Mapped[float | None]
    library_faster: Mapped[bool | None]
    ties: Mapped[int] = mapped_column(server_default="0")  # finalists that the noise does not tell from the winner
    bound_ratio: Mapped[float | None]
    verified_at: Mapped[datetime] = mapped_column(server_default=func.now())
    superseded_by_id: Mapped[int | None] = mapped_column(
        ForeignKey("best_configurations.id", deferrable=True, initially="DEFERRED")
    )
    retracted_at: Mapped[datetime | None]
    retracted_reason: Mapped[str | None]

    trial: Mapped[Trial] = relationship(lazy="raise")
    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment] = relationship(lazy="raise")
