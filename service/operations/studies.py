"""Studies and what their trials came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import Page, StudyAnswer
from tilewright.service.operations.pages import MAX_ROW_ID, cursor_of, row_id_of
from tilewright.service.operations.registry import environment_answer, problem_answer
from tilewright.service.store import models


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
