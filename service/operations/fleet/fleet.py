"""Devices: drained and resumed; their queues; whether a device takes jobs now, and whether this process can serve."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from pydantic import Field
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tilewright.service.errors import DatabaseUnavailableError, NotFoundError
from tilewright.service.operations.answers import Answer, DeviceAnswer
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.registry import devices
from tilewright.service.settings import settings
from tilewright.service.store import models, schema
from tilewright.service.store.models import JobState
from tilewright.service.store.session import session_scope


def drain_device(session: Session, uuid: str) -> DeviceAnswer:
    """Drains the device: it takes no more jobs, also after its worker is restarted. Raises NotFoundError."""
    return _set(session, uuid, func.coalesce(models.Device.drain_requested_at, func.now()))


def resume_device(session: Session, uuid: str) -> DeviceAnswer:
    """Lets the device take jobs again; raises NotFoundError."""
    return _set(session, uuid, None)


def takes_jobs(session: Session, uuid: str) -> bool:
    """Whether the device may take jobs now."""
    table = models.Device
    return bool(session.scalar(select(table.drain_requested_at.is_(None)).where(table.uuid == uuid)))


def workers_alive(session: Session) -> int:
    """The number of workers with a recent heartbeat; in a large fleet each asks the database less often."""
    table = models.Device
    silent = func.make_interval(0, 0, 0, 0, 0, 0, settings().stalled_after_s)
    alive = select(func.count()).where(table.worker.is_not(None), table.heartbeat_at > func.now() - silent)
    return session.scalar(alive) or 0


def _set(session: Session, uuid: str, moment: object) -> DeviceAnswer:
    table = models.Device
    changed = session.scalar(
        update(table).where(table.uuid == uuid).values(drain_requested_at=moment).returning(table.id)
    )
    if changed is None:
        known = session.scalars(select(table.uuid).order_by(table.uuid).limit(20))
        raise NotFoundError("device", uuid, list(known))
    return next(device for device in devices(session) if device.uuid == uuid)


class QueueAnswer(Answer):
    """The open jobs for a device model, or for one device of it."""

    device_model: str | None = Field(description="Null: any model's device may take them.")
    device: str | None = Field(description="UUID, where only that device may take them.")
    queued: int
    running: int
    oldest_at: datetime | None = Field(description="When the oldest queued job was requested.")
    is_served: bool = Field(description="Whether a device that may take them is alive, ready and not draining.")


def queues(session: Session, devices: Sequence[DeviceAnswer]) -> list[QueueAnswer]:
    """The queues that hold an open job, the longest first; `devices` are all devices."""
    job, model, device = models.TuningJob, models.DeviceModel, models.Device
    is_queued = job.state == JobState.QUEUED
    rows = session.execute(
        select(
            model.slug,
            device.uuid,
            func.count().filter(is_queued),
            func.count().filter(~is_queued),
            func.min(job.created_at).filter(is_queued),
        )
        .outerjoin(model, model.id == job.device_model_id)
        .outerjoin(device, device.id == job.device_id)
        .where(job.state.in_(OPEN))
        .group_by(model.slug, device.uuid)
    )
    takers = [taker for taker in devices if taker.alive and taker.state == "ready" and not taker.draining]
    answers = [
        QueueAnswer(
            device_model=slug,
            device=uuid,
            queued=queued,
            running=running,
            oldest_at=oldest_at,
            is_served=any(slug in {None, taker.model} and uuid in {None, taker.uuid} for taker in takers),
        )
        for slug, uuid, queued, running, oldest_at in rows
    ]
    return sorted(answers, key=lambda queue: (-queue.queued, queue.device_model or "", queue.device or ""))


logger = logging.getLogger(__name__)


def what_is_missing() -> str | None:
    """A sentence on the first thing that keeps this process from serving, or None when it is ready."""
    try:
        with session_scope() as session:
            session.execute(text("SELECT 1"))
        if not schema.at_head():
            return "The database is not migrated to this version; run `tilewright db upgrade`."
        with session_scope() as session:
            session.execute(text("SET LOCAL lock_timeout = 2000"))
            session.execute(text("UPDATE chore_rounds SET id = id WHERE id = 1"))
    except DatabaseUnavailableError:
        return "The database does not answer."
    except SQLAlchemyError as error:
        logger.warning("The database takes no changes: %s", error)
        return "The database answers but takes no changes: it is read-only, or its disk is full."
    return None
