"""Trials, the best configurations among them, and tables of families."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base, by_value
from tilewright.service.store.models.devices import DeviceModel, Environment
from tilewright.service.store.models.jobs import Study
from tilewright.service.store.models.problems import KernelVariant, Problem
from tilewright.tuner.outcome import Outcome


class Trial(Base):
    """One configuration compiled, verified and timed; it has a time only if it was measured."""

    __tablename__ = "trials"
    __table_args__ = (
        CheckConstraint("(outcome = 'measured') = (time_ms IS NOT NULL)", name="time_only_when_measured"),
        CheckConstraint("time_ms > 0 AND time_ms < 'Infinity'", name="time_is_a_time"),
        UniqueConstraint("study_id", "number"),
        UniqueConstraint("study_id", "configuration_hash"),
        Index(None, "study_id", "time_ms"),
        Index(None, "study_id", "kernel_variant_id"),
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
    outcome: Mapped[Outcome] = mapped_column(by_value(Outcome, "outcome"))
    time_ms: Mapped[float | None]  # the ranking median
    ranking_l2: Mapped[str]
    warm_ms: Mapped[float | None]
    warm_spread_ms: Mapped[float | None]
    warm_samples_ms: Mapped[list[float] | None]
    cold_ms: Mapped[float | None]
    cold_spread_ms: Mapped[float | None]
    cold_samples_ms: Mapped[list[float] | None]
    samples_pruned_at: Mapped[datetime | None]  # set: the samples are gone, their median's interval is kept below
    ci_low_ms: Mapped[float | None]
    ci_high_ms: Mapped[float | None]
    gflops: Mapped[float | None]
    gb_per_s: Mapped[float | None]
    registers: Mapped[int | None]
    shared_bytes: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    occupancy: Mapped[float | None]
    pack_ms: Mapped[float | None]  # of an operand, once; no part of a time
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


class TrialRetry(Base):
    """A trial that counts as not made, because its configuration is to be tried again."""

    __tablename__ = "trial_retries"

    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class BestConfiguration(Base):
    """The winner of a study's finals. The current one is neither superseded nor retracted."""

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
        Index(None, "problem_id", "device_model_id", "verified_at"),
        Index(None, "trial_id"),
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
    gflops: Mapped[float | None]  # None: the kernel does not count its work
    gb_per_s: Mapped[float | None]
    roof_ratio: Mapped[float | None]
    default_ms: Mapped[float | None]
    slowest_ms: Mapped[float | None]
    library_name: Mapped[str | None]
    library_ms: Mapped[float | None]
    library_faster: Mapped[bool | None]
    ties: Mapped[int] = mapped_column(server_default="0")  # finalists that the noise does not tell from the winner
    bound_ratio: Mapped[float | None]  # the worst over every kind of inputs
    library_bound_ratio: Mapped[float | None]
    verified_at: Mapped[datetime] = mapped_column(server_default=func.now())
    superseded_by_id: Mapped[int | None] = mapped_column(
        ForeignKey("best_configurations.id", deferrable=True, initially="DEFERRED")
    )
    retracted_at: Mapped[datetime | None]
    retracted_reason: Mapped[str | None]
    retracted_by: Mapped[str | None]  # who asked for it; None: later finals did
    stands_in_for_id: Mapped[int | None] = mapped_column(ForeignKey("best_configurations.id"))  # a retracted one

    trial: Mapped[Trial] = relationship(lazy="raise")
    problem: Mapped[Problem] = relationship(lazy="raise")
    device_model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment] = relationship(lazy="raise")

    @property
    def pack_ms(self) -> float | None:
        """The trial's `pack_ms`; the trial must be loaded."""
        return self.trial.pack_ms


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
