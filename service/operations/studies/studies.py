"""Studies with their trials' outcomes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session, defer, joinedload

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import Answer, Page, StudyAnswer, TrialAnswer
from tilewright.service.operations.jobs.jobs import trial_answer
from tilewright.service.operations.pages import MAX_ROW_ID, cursor_of, row_id_of
from tilewright.service.operations.registry import environment_answer, problem_answer
from tilewright.service.store import models

Order = Literal["fastest", "newest"]


def study(session: Session, study_id: int) -> StudyAnswer:
    """One study; raises NotFoundError."""
    row = None
    if 0 < study_id <= MAX_ROW_ID:
        row = session.scalars(_with_relations().where(models.Study.id == study_id)).one_or_none()
    if row is None:
        raise NotFoundError("study", str(study_id))
    return _answers(session, [row])[0]


def studies(
    session: Session,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[StudyAnswer]:
    """One page of studies, newest first; unknown names give an empty page."""
    query = _with_relations().order_by(models.Study.id.desc()).limit(limit + 1)
    if kernel is not None:
        query = query.where(models.Study.problem.has(models.Problem.kernel.has(models.Kernel.name == kernel)))
    if device_model is not None:
        query = query.where(models.Study.device_model.has(models.DeviceModel.slug == device_model))
    if cursor is not None:
        query = query.where(models.Study.id < row_id_of(cursor))
    rows = session.scalars(query).all()
    return Page(
        items=_answers(session, rows[:limit]),
        next_cursor=cursor_of(rows[limit - 1].id) if len(rows) > limit else None,
    )


def shown_trials(
    session: Session,
    *,
    study_id: int | None = None,
    job_id: uuid.UUID | None = None,
    order: Order = "fastest",
    limit: int = 50,
    skip: int = 0,
    where: Sequence[ColumnElement[bool]] = (),
) -> list[TrialAnswer]:
    """Trials of a study or of a job as a person reads them: fastest or newest first; failed ones have no time."""
    table = models.Trial
    query = select(table).options(defer(table.warm_samples_ms), defer(table.cold_samples_ms)).where(*where)
    if study_id is not None:
        query = query.where(table.study_id == study_id)
    if job_id is not None:
        query = query.where(table.job_id == job_id)
    ordering = (table.time_ms.asc().nulls_last(), table.id) if order == "fastest" else (table.id.desc(),)
    return [trial_answer(row) for row in session.scalars(query.order_by(*ordering).limit(limit).offset(skip))]


def count_trials(session: Session, study_id: int, where: Sequence[ColumnElement[bool]]) -> int:
    """How many trials of the study fulfil the conditions."""
    query = select(func.count()).select_from(models.Trial).where(models.Trial.study_id == study_id, *where)
    return session.scalars(query).one()


def trial(session: Session, study_id: int, number: int) -> tuple[TrialAnswer, str, str] | None:
    """One trial with the hash and text of its source; None where the study has no such trial."""
    if not (0 <= number <= MAX_ROW_ID and 0 < study_id <= MAX_ROW_ID):
        return None
    table = models.Trial
    query = select(table).where(table.study_id == study_id, table.number == number)
    row = session.scalars(query.options(joinedload(table.kernel_variant))).one_or_none()
    if row is None:
        return None
    return trial_answer(row), row.kernel_variant.source_hash, row.kernel_variant.source


class JobTrials(Answer):
    """A job's trials in short: how many by outcome, and each improvement as (place in the job from 1, time in ms)."""

    outcomes: dict[str, int]
    improvements: list[tuple[int, float]]

    @property
    def total(self) -> int:
        """All trials of the job."""
        return sum(self.outcomes.values())


def job_trials(session: Session, job_id: uuid.UUID) -> JobTrials:
    """The job's trials in short, in two queries whatever their number."""
    table = models.Trial
    counted = session.execute(
        select(table.outcome, func.count())
        .where(table.job_id == job_id)
        .group_by(table.outcome)
        .order_by(table.outcome)
    )
    numbered = (
        select(
            func.row_number().over(order_by=table.id).label("place"),
            table.time_ms,
            func.min(table.time_ms).over(order_by=table.id, rows=(None, -1)).label("best_before_ms"),
        )
        .where(table.job_id == job_id)
        .subquery()
    )
    improved = or_(numbered.c.best_before_ms.is_(None), numbered.c.time_ms < numbered.c.best_before_ms)
    improvements = session.execute(
        select(numbered.c.place, numbered.c.time_ms)
        .where(numbered.c.time_ms.is_not(None), improved)
        .order_by(numbered.c.place)
    )
    return JobTrials(
        outcomes={outcome.value: count for outcome, count in counted},
        improvements=[(place, time_ms) for place, time_ms in improvements],
    )


def _with_relations() -> Select[models.Study]:
    return select(models.Study).options(
        joinedload(models.Study.problem).joinedload(models.Problem.kernel),
        joinedload(models.Study.device_model),
        joinedload(models.Study.environment),
    )


def _answers(session: Session, rows: Iterable[models.Study]) -> list[StudyAnswer]:
    """The answers, with all trials counted in one query."""
    studies_asked = list(rows)
    outcomes: dict[int, dict[str, int]] = defaultdict(dict)
    best_ms: dict[int, float] = {}
    counted = session.execute(
        select(models.Trial.study_id, models.Trial.outcome, func.count(), func.min(models.Trial.time_ms))
        .where(models.Trial.study_id.in_([row.id for row in studies_asked]))
        .group_by(models.Trial.study_id, models.Trial.outcome)
        .order_by(models.Trial.study_id, models.Trial.outcome)
    )
    for study_id, outcome, count, fastest_ms in counted:
        outcomes[study_id][str(outcome)] = count
        if fastest_ms is not None:
            best_ms[study_id] = fastest_ms
    return [
        StudyAnswer(
            id=row.id,
            problem=problem_answer(row.problem),
            device_model=row.device_model.slug,
            environment=environment_answer(row.environment),
            space_size=row.space_size,
            trials=sum(outcomes[row.id].values()),
            outcomes=outcomes[row.id],
            best_ms=best_ms.get(row.id),
            created_at=row.created_at,
        )
        for row in studies_asked
    ]
