"""Device models, devices, and the environments that results were measured in."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.service.store.models.declarative import Base, by_value


class DeviceState(StrEnum):
    """Whether a device may be given work."""

    READY = "ready"
    LOST = "lost"  # it stopped answering twice in a row; somebody must look at it


class DeviceModel(Base):
    """A product, with its limits and peaks (`details`: tuner.devices.device.DeviceModel as JSON)."""

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
    """One device, by UUID, on a host whose worker last reported at `heartbeat_at`.

    A slice of a GPU (MIG) is a device of its own model; `physical_uuid` names the GPU that it is cut from.
    """

    __tablename__ = "devices"

    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(unique=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("device_models.id"))
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    host: Mapped[str]
    ordinal: Mapped[int] = mapped_column(server_default="0")
    physical_uuid: Mapped[str | None]  # set where it is a slice
    state: Mapped[DeviceState] = mapped_column(by_value(DeviceState, "state"), server_default="ready")
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.now())
    worker: Mapped[str | None]  # host, process id and device of the worker that registered it last
    worker_started_at: Mapped[datetime | None]
    drain_requested_at: Mapped[datetime | None]  # set: no more jobs until somebody resumes it
    cache_files: Mapped[int | None]  # compiled kernels kept on its host, as its worker last counted them
    cache_bytes: Mapped[int | None] = mapped_column(type_=BigInteger)

    model: Mapped[DeviceModel] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")


class Environment(Base):
    """Driver, toolkit, compiler, runtime, clocks; `hash` is tuner.devices.device.Environment.hash."""

    __tablename__ = "environments"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    driver: Mapped[str]
    toolkit: Mapped[str]
    compiler: Mapped[str]
    compiler_version: Mapped[str]
    runtime: Mapped[str]
    clocks: Mapped[str]
    origin: Mapped[str | None]  # the installation that its results were imported from; None: measured here
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
