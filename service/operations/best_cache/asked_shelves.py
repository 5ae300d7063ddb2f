"""Records which shelves of best configurations are asked about, so that later processes load them at their start."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.store import models

Name = tuple[str, str]
"""A kernel and the slug of a device model."""

LATELY = timedelta(days=7)
"""A shelf that nobody asked about for so long is not loaded at the start."""


def note_asked(session: Session, names: Collection[Name]) -> None:
    """Records that these were asked about now, and deletes records older than LATELY."""
    shelf = models.AskedShelf
    ids = dict(session.execute(select(models.DeviceModel.slug, models.DeviceModel.id)).all())
    rows = [{"kernel": kernel, "device_model_id": ids[slug]} for kernel, slug in sorted(names) if slug in ids]
    if rows:
        key = [shelf.kernel, shelf.device_model_id]
        asked = insert(shelf).values(rows)
        session.execute(asked.on_conflict_do_update(index_elements=key, set_={"asked_at": func.now()}))
    session.execute(delete(shelf).where(shelf.asked_at < func.now() - LATELY))


def asked_lately(session: Session) -> list[Name]:
    """The shelves that were asked about within LATELY, the latest first."""
    shelf, model = models.AskedShelf, models.DeviceModel
    query = select(shelf.kernel, model.slug).join(model, model.id == shelf.device_model_id)
    recent = query.where(shelf.asked_at > func.now() - LATELY).order_by(shelf.asked_at.desc(), shelf.kernel, model.slug)
    return [(kernel, slug) for kernel, slug in session.execute(recent)]
