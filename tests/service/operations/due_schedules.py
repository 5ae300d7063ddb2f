"""Schedules that wait for a moment, and what came of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from desk import SHAPE
from sqlalchemy import select, update

from tilewright.service.operations.requests import ScheduleRequest
from tilewright.service.operations.schedules.schedules import create_schedule
from tilewright.service.store import models

GEMM = {"kernel": "gemm", "shape": SHAPE}
SMALL = {"kernel": "gemm", "shape": {"m": 8, "n": 8, "k": 8}}
BASE = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


def wanted(**more) -> ScheduleRequest:
    return ScheduleRequest(**{"name": "each second", "cron": "* * * * * *", "problems": [GEMM]} | more)


def due_at(session, moment: datetime, **more) -> int:
    """Id of a schedule that waits for that moment."""
    made = create_schedule(session, wanted(**more))
    session.execute(update(models.Schedule).where(models.Schedule.id == made.id).values(next_at=moment))
    return made.id


def jobs_of(session, schedule_id: int) -> list[models.TuningJob]:
    table = models.TuningJob
    query = select(table).where(table.schedule_id == schedule_id).order_by(table.fire_at, table.id)
    return list(session.scalars(query))


def fired_at(session, schedule_id: int, outcome: str = "fired") -> list[datetime]:
    table = models.ScheduleFire
    query = select(table.fire_at).where(table.schedule_id == schedule_id, table.outcome == outcome)
    return list(session.scalars(query.order_by(table.fire_at)))


def seconds(*offsets: int) -> list[datetime]:
    return [BASE + timedelta(seconds=offset) for offset in offsets]
