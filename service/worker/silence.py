"""Whether a worker that sends no heartbeat has died, or is merely starved by its host or by the database."""

from __future__ import annotations

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from tilewright.service.device_lock import is_held
from tilewright.service.settings import settings
from tilewright.service.store import models

PATIENCE = 3.0
"""So many times as long is a worker waited for whose connection to the database lives. It may be frozen; but 200
simulated workers on two cores sent heartbeats up to 54 s late (p99), and a job that is taken from a living worker is
prepared again. A process that was killed has no connection, and a lost host's ends after half a minute."""


def forgotten_after_s() -> float:
    """Seconds of silence after which the engine may forget a worker and its job."""
    return PATIENCE * settings().stalled_after_s


def is_database_new(session: Session) -> bool:
    """Whether the database has run for less than two heartbeats: it has heard of nobody yet."""
    age_s = session.scalar(select(func.extract("epoch", func.clock_timestamp() - func.pg_postmaster_start_time())))
    return float(age_s or 0.0) < 2 * settings().heartbeat_s


def is_starved(session: Session, job: models.TuningJob, engine_worker: int | None) -> bool:
    """Whether the job's worker may still be working on it although its heartbeats stopped.

    It is where a trial of the job was stored lately, since a job's process dies with its worker; and for PATIENCE times
    the usual time, where the worker holds its device in the database.
    """
    age_s = func.extract("epoch", func.now() - func.max(models.Trial.created_at))
    of_job = models.Trial.job_id == job.id, models.Trial.epoch == job.epoch
    stored_s = session.scalar(select(age_s).where(*of_job))
    if stored_s is not None and stored_s < settings().stalled_after_s:
        return True
    device = session.scalars(select(models.Device).where(models.Device.worker == job.worker)).one_or_none()
    if device is None or engine_worker is None:
        return False
    silence = "SELECT extract(epoch FROM now() - last_heartbeat) FROM procrastinate_workers WHERE id = :id"
    silent_s = session.scalar(text(silence), {"id": engine_worker})
    return (
        silent_s is not None
        and silent_s < forgotten_after_s()
        and is_held(session, device.physical_uuid or device.uuid)
    )
