"""Devices that can compute a drawing, besides the API's own process: those whose worker is alive and takes work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pydantic import Field
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from tilewright.service.errors import DeviceUnavailableError, InvalidRequestError
from tilewright.service.operations.answers import Answer
from tilewright.service.settings import settings
from tilewright.service.store import models

API = "api"
"""The place that is always available: NumPy, in the API's process."""

LISTED = 20
"""Most devices that a refusal lists."""


class DigitPlace(Answer):
    """A device that computes drawings."""

    on: str = Field(description="The device's UUID: what `on` is set to.")
    device_model: str = Field(description="Slug; as `on` it means any available device of the model.")
    name: str = Field(description="The product's name.")
    host: str
    ordinal: int
    measuring: bool = Field(description="It runs a job: it answers between two trials.")


def places(session: Session) -> list[DigitPlace]:
    """The devices that compute drawings now, by host and ordinal."""
    return [place for place, hindrance in _devices(session) if hindrance is None]


def place_named(session: Session, on: str) -> DigitPlace:
    """The device of that UUID, or one of that model, preferably one that runs no job.

    Raises InvalidRequestError for an unknown name, DeviceUnavailableError where no such device takes work.
    """
    devices = _devices(session)
    named = [(place, hindrance) for place, hindrance in devices if on in {place.on, place.device_model}]
    if not named:
        known = ", ".join(place.on for place, hindrance in devices[:LISTED] if hindrance is None)
        raise InvalidRequestError(
            "on", f"there is no device or device model {on!r}. Places here: {', '.join(filter(None, (API, known)))}."
        )
    able = [place for place, hindrance in named if hindrance is None]
    if not able:
        place, hindrance = named[0]
        raise DeviceUnavailableError(f"The device {place.on} on {place.host} {hindrance}. Set `on` to {API}.")
    return min(able, key=lambda place: place.measuring)


def _devices(session: Session) -> list[tuple[DigitPlace, str | None]]:
    """Every device that a worker has registered, and what keeps it from taking work."""
    device, model, job = models.Device, models.DeviceModel, models.TuningJob
    running = exists().where(job.worker == device.worker, job.state == models.JobState.RUNNING)
    rows = session.execute(
        select(device, model.slug, model.name, running)
        .join(model, model.id == device.model_id)
        .order_by(device.host, device.ordinal, device.uuid)
    )
    return [
        (
            DigitPlace(
                on=row.uuid, device_model=slug, name=name, host=row.host, ordinal=row.ordinal, measuring=is_running
            ),
            _hindrance(row),
        )
        for row, slug, name, is_running in rows
    ]


def _hindrance(device: models.Device) -> str | None:
    silent_since = datetime.now(UTC) - timedelta(seconds=settings().stalled_after_s)
    if device.heartbeat_at <= silent_since:
        return "has no worker that is alive"
    if device.state is not models.DeviceState.READY:
        return f"is {device.state}"
    return None if device.drain_requested_at is None else "is drained: it takes no work until it is resumed"
