"""Draining and resuming devices: a draining device ends its running job and takes no other."""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import DeviceAnswer
from tilewright.service.operations.registry import devices
from tilewright.service.settings import settings
from tilewright.service.store import models


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
    """How many workers have sent a heartbeat lately; of a large fleet each asks the database less often."""
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
