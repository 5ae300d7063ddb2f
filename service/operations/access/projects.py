"""Projects: each a team's keys, with the jobs, schedules and webhooks of these, and quotas of all of them together.

Results belong to nobody: what one project has tuned all are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tilewright.service.errors import ConflictError, InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import Answer
from tilewright.service.operations.requests import ProjectQuotas, ProjectRequest
from tilewright.service.store import models
from tilewright.service.store.models import JobState


class ProjectAnswer(Answer):
    """A project: its quotas, and what it has now."""

    name: str
    max_open_jobs: int | None = Field(description="Jobs of all its keys queued or running; null: each key's quota.")
    max_queued_seconds: float | None = Field(
        description="Seconds that they may take together; null: each key's quota.", examples=[86400]
    )
    max_schedules: int | None = Field(description="Schedules of all its keys; null: each key's quota.")
    keys: int = Field(description="Keys, also those out of force.")
    open_jobs: int
    schedules: int
    created_at: datetime


def projects(session: Session) -> list[ProjectAnswer]:
    """Every project by name."""
    rows = session.scalars(select(models.Project).order_by(models.Project.name)).all()
    job, key, schedule = models.TuningJob, models.ApiKey, models.Schedule
    open_jobs, keys, schedules = (
        _counts(session, select(table.project_id, func.count()).where(*those).group_by(table.project_id))
        for table, those in ((job, [job.state.in_((JobState.QUEUED, JobState.RUNNING))]), (key, []), (schedule, []))
    )
    return [
        ProjectAnswer(
            **{name: getattr(row, name) for name in ("name", "created_at", *ProjectQuotas.model_fields)},
            keys=keys.get(row.id, 0),
            open_jobs=open_jobs.get(row.id, 0),
            schedules=schedules.get(row.id, 0),
        )
        for row in rows
    ]


def create_project(session: Session, request: ProjectRequest) -> ProjectAnswer:
    """The new project; raises ConflictError for a taken name."""
    row = insert(models.Project).values(**request.model_dump()).on_conflict_do_nothing().returning(models.Project.id)
    if session.scalar(row) is None:
        raise ConflictError(f"There is a project {request.name!r} already; change its quotas, or choose another name.")
    return _project(session, request.name)


def change_quotas(session: Session, name: str, quotas: ProjectQuotas) -> ProjectAnswer:
    """The project with the quotas that are given, the others as they were; raises NotFoundError."""
    row = session.scalars(select(models.Project).where(models.Project.name == name)).one_or_none()
    if row is None:
        raise NotFoundError("project", name, _names(session))
    for field in quotas.model_fields_set:
        setattr(row, field, getattr(quotas, field))
    session.flush()
    return _project(session, name)


def project_id(session: Session, name: str) -> int:
    """The id of that project; raises InvalidRequestError."""
    found = session.scalar(select(models.Project.id).where(models.Project.name == name))
    if found is None:
        raise InvalidRequestError("project", f"there is no project {name!r}; known: {', '.join(_names(session))}.")
    return found


def _project(session: Session, name: str) -> ProjectAnswer:
    return next(one for one in projects(session) if one.name == name)


def _names(session: Session) -> list[str]:
    return list(session.scalars(select(models.Project.name).order_by(models.Project.name)))


def _counts(session: Session, query: Any) -> Mapping[int, int]:
    return dict(session.execute(query).all())
