"""Reads jobs and trials, and cancels jobs."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select, update
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import ConflictError, InvalidRequestError, NotFoundError
from tilewright.service.operations.access.ownership import check_owner, owner_of_job
from tilewright.service.operations.access.projects import project_id
from tilewright.service.operations.answers import JobAnswer, Page, TrialAnswer, TunedFor
from tilewright.service.operations.jobs.search import matches
from tilewright.service.operations.pages import cursor_content, cursor_of, invalid_cursor, packed_cursor, row_id_of
from tilewright.service.operations.registry import tuned_for_answer
from tilewright.service.operations.webhooks.webhooks import announce
from tilewright.service.store import models
from tilewright.service.store.forced import forced
from tilewright.service.store.models import JobState

OPEN = (JobState.QUEUED, JobState.RUNNING)
"""States from which a job can still go on."""

IMPORTED = "import"
"""The sampler of jobs that an import made: nothing ran here."""

_SAME = tuple(name for name in JobAnswer.model_fields if name in models.TuningJob.__table__.columns and name != "state")
COLUMNS = (*_SAME, "state", "budget_trials", "budget_seconds", "budget_target_ms")
"""The columns of a job's row that its answer is made from."""


def job(session: Session, job_id: uuid.UUID) -> JobAnswer:
    """One job; raises NotFoundError."""
    return job_at_revision(session, job_id)[0]


def jobs_by_id(session: Session, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, JobAnswer]:
    """The jobs that exist among those ids, read by two queries."""
    rows = _rows(session, models.TuningJob.id.in_(ids), len(ids))
    return {answer.id: answer for answer in _answers(session, rows)}


def job_at_revision(session: Session, job_id: uuid.UUID) -> tuple[JobAnswer, models.TuningJob]:
    """One job with the row that the answer was made from; raises NotFoundError."""
    rows = _rows(session, models.TuningJob.id == job_id, 1)
    if not rows:
        raise NotFoundError("job", str(job_id))
    return _answers(session, rows)[0], rows[0]


def jobs(
    session: Session,
    *,
    state: str | None = None,
    search: str | None = None,
    project: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[JobAnswer]:
    """One page of jobs, newest first; raises InvalidRequestError for an unknown state, project or cursor."""
    conditions = _conditions(state, search)
    if project is not None:
        conditions.append(models.TuningJob.project_id == project_id(session, project))
    if cursor is not None:
        conditions.append(models.TuningJob.id < _job_id_of(cursor))
    rows = _rows(session, and_(True, *conditions), limit + 1)  # noqa: FBT003 - SQL's TRUE
    more = packed_cursor(rows[limit - 1].id.bytes) if len(rows) > limit else None
    return Page(items=_answers(session, rows[:limit]), next_cursor=more)


def shown_jobs(
    session: Session,
    *,
    state: str | None,
    search: str | None,
    ordering: Sequence[ColumnElement[Any]],
    limit: int,
    skip: int,
) -> list[JobAnswer]:
    """Jobs as a person reads them: in the order of `search.ordering`; raises InvalidRequestError like `jobs`."""
    conditions = _conditions(state, search)
    return _answers(session, _rows(session, and_(True, *conditions), limit, ordering, skip))  # noqa: FBT003 - SQL's TRUE


def imports(session: Session, limit: int) -> list[JobAnswer]:
    """The newest studies that imports brought, each as the job that holds it."""
    return _answers(session, _rows(session, models.TuningJob.sampler == IMPORTED, limit))


def of_problem(session: Session, problem_id: int, limit: int) -> list[JobAnswer]:
    """The newest jobs of one problem."""
    return _answers(session, _rows(session, models.TuningJob.problem_id == problem_id, limit))


def _conditions(state: str | None, search: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if state is not None:
        known = [known.value for known in JobState]
        if state not in known:
            raise InvalidRequestError("state", f"must be one of {', '.join(known)}.", known[0])
        conditions.append(models.TuningJob.state == JobState(state))
    if search:
        conditions.append(matches(search))
    return conditions


def cancel_job(session: Session, job_id: uuid.UUID) -> JobAnswer:
    """Cancels a queued job at once; a running one is asked to stop after its present trial.

    Raises NotFoundError, NotOwnerError, and ConflictError for a job that has ended otherwise.
    """
    table = models.TuningJob
    check_owner(session, "job", owner_of_job(session, job_id))
    is_queued = table.state == JobState.QUEUED
    with forced(session):
        changed = session.scalar(
            update(table)
            .where(table.id == job_id, table.state.in_(OPEN))
            .values(
                cancel_requested=True,
                state=case((is_queued, JobState.CANCELLED), else_=table.state),
                phase=case((is_queued, "finished"), else_=table.phase),
                finished_at=case((is_queued, func.now()), else_=None),
                revision=table.revision + 1,
                state_revision=table.revision + 1,
            )
            .returning(table.id)
        )
    announce(session, job_id)
    answer = job(session, job_id)
    if changed is None and answer.state != JobState.CANCELLED:
        raise ConflictError(f"The job is {answer.state} already; there is nothing to cancel.")
    return answer


def trials(
    session: Session,
    *,
    job_id: uuid.UUID | None = None,
    study_id: int | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page[TrialAnswer]:
    """One page of trials in the order in which they were recorded; raises NotFoundError for an unknown job or study."""
    table, query = models.Trial, select(models.Trial).order_by(models.Trial.id).limit(limit + 1)
    if job_id is not None:
        if session.get(models.TuningJob, job_id) is None:
            raise NotFoundError("job", str(job_id))
        query = query.where(table.job_id == job_id)
    if study_id is not None:
        if session.get(models.Study, study_id) is None:
            raise NotFoundError("study", str(study_id))
        query = query.where(table.study_id == study_id)
    if cursor is not None:
        query = query.where(table.id > row_id_of(cursor))
    rows = session.scalars(query).all()
    more = cursor_of(rows[limit - 1].id) if len(rows) > limit else None
    return Page(items=[trial_answer(row) for row in rows[:limit]], next_cursor=more)


def trial_answer(row: models.Trial) -> TrialAnswer:
    """The trial as callers see it."""
    values = {name: value for name, value in row.configuration.items() if name != "variant"}
    spread_ms = row.cold_spread_ms if row.ranking_l2 == "cold" else row.warm_spread_ms
    copied = {name: getattr(row, name) for name in TrialAnswer.model_fields if hasattr(row, name)}
    computed = {"variant": row.configuration["variant"], "configuration": values, "spread_ms": spread_ms}
    return TrialAnswer(**copied | computed | {"outcome": row.outcome.value})


def _rows(
    session: Session,
    condition: ColumnElement[bool],
    limit: int,
    ordering: Sequence[ColumnElement[Any]] = (models.TuningJob.id.desc(),),
    skip: int = 0,
) -> Sequence[models.TuningJob]:
    return session.scalars(
        select(models.TuningJob)
        .where(condition)
        .order_by(*ordering)
        .limit(limit)
        .offset(skip)
        .options(
            joinedload(models.TuningJob.problem).joinedload(models.Problem.kernel),
            joinedload(models.TuningJob.device_model),
            joinedload(models.TuningJob.device),
        )
        # Other statements of this transaction may have changed a row behind the session's back.
        .execution_options(populate_existing=True)
    ).all()


def _answers(session: Session, rows: Sequence[models.TuningJob]) -> list[JobAnswer]:
    studies = {row.study_id for row in rows if row.study_id is not None}
    best_ms: dict[int, float | None] = {}
    if studies:  # a job that nobody has begun has none
        fastest = session.execute(
            select(models.Trial.study_id, func.min(models.Trial.time_ms).label("fastest_ms"))
            .where(models.Trial.study_id.in_(studies))
            .group_by(models.Trial.study_id)
        )
        best_ms = {row.study_id: row.fastest_ms for row in fastest}
    return [_answer(row, best_ms.get(row.study_id) if row.study_id is not None else None) for row in rows]


def _answer(row: models.TuningJob, best_ms: float | None) -> JobAnswer:
    slug = row.device_model.slug if row.device_model else None
    return answer_of(row, tuned_for_answer(row.problem), slug, row.device, best_ms)


def answer_of(
    row: Any, problem: TunedFor, device_model: str | None, device: models.Device | None, best_ms: float | None
) -> JobAnswer:
    """The job as callers see it, from a row with COLUMNS and what its foreign keys refer to.

    `best_ms`: of its study's fastest trial; the winner of the job's own finals comes before it, and a job that ended
    without a winner, or failed, has none.
    """
    result = row.result or {}
    own_ms = (result.get("best") or {}).get("time_ms")
    has_none = row.state == models.JobState.FAILED or result.get("best", own_ms or best_ms) is None
    return JobAnswer(
        **{name: getattr(row, name) for name in _SAME},
        state=row.state.value,
        problem=problem,
        device_model=device_model,
        device=device.uuid if device else None,
        device_place=f"{device.ordinal} of {device.host}" if device else None,
        budget={"trials": row.budget_trials, "seconds": row.budget_seconds, "target_ms": row.budget_target_ms},
        best_ms=own_ms if own_ms is not None or has_none else best_ms,
        gain_over_default=result.get("gain_over_default"),
        stopped_by=result.get("stopped_by"),
    )


def _job_id_of(cursor: str) -> uuid.UUID:
    try:
        return uuid.UUID(bytes=cursor_content(cursor))
    except ValueError:
        raise invalid_cursor() from None
