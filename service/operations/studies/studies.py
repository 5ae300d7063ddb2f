"""Studies with their trials' outcomes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, func, or_, select
from sqlalchemy.orm import Session, defer, joinedload

from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import Answer, EnvironmentAnswer, Page, StudyAnswer, TrialAnswer
from tilewright.service.operations.jobs.jobs import trial_answer
from tilewright.service.operations.pages import MAX_ROW_ID, newest_first, ordering
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.shape_filter import in_order
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.store import models

Order = str
"""`fastest`, `newest`, or one of TRIAL_COLUMNS, with - in front for downwards."""

SHORT_ORDERS = {"fastest": "time", "newest": "-trial"}
TRIAL_COLUMNS: Mapping[str, bool] = {
    "time": False,
    "trial": True,
    "configuration": False,
    "outcome": False,
    "spread": False,
    "rate": True,
    "traffic": True,
    "registers": False,
    "shared": False,
    "occupancy": True,
}
"""The sortable columns of trials, and whether the greatest values come first."""


STUDY_COLUMNS: Mapping[str, bool] = {
    "started": True,
    "problem": False,
    "trials": True,
    "failed": True,
    "best": False,
    "environment": True,
}
"""The sortable columns of studies, and whether the greatest values come first."""


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
    query = _narrowed(_with_relations(), kernel, device_model)
    return newest_first(session, query, models.Study.id, partial(_answers, session), limit=limit, cursor=cursor)


def shown_studies(
    session: Session, *, kernel: str | None, device_model: str | None, order: str, limit: int
) -> list[StudyAnswer]:
    """Studies in an order for people, one of STUDY_COLUMNS, with - for downwards."""
    study, trial, problem, environment = models.Study, models.Trial, models.Problem, models.Environment
    own = select(func.count()).select_from(trial).where(trial.study_id == study.id).correlate(study)
    fastest_ms = own.with_only_columns(func.min(trial.time_ms))
    columns: dict[str, list[Any]] = {
        "started": [study.id],
        "problem": in_order(models.Kernel.name, problem.shape, problem.dtype),
        "trials": [own.scalar_subquery()],
        "failed": [own.where(trial.time_ms.is_(None)).scalar_subquery()],
        "best": [func.coalesce(_settled_ms(), fastest_ms.scalar_subquery())],
        "environment": [environment.driver, environment.toolkit, environment.compiler_version],
    }
    column = order.removeprefix("-")
    query = _narrowed(_with_relations(), kernel, device_model)
    if column == "problem":
        query = query.join(problem, problem.id == study.problem_id)
        query = query.join(models.Kernel, models.Kernel.id == problem.kernel_id)
    if column == "environment":
        query = query.join(environment, environment.id == study.environment_id)
    query = query.order_by(*ordering(columns[column], order), study.id.desc()).limit(limit)
    return _answers(session, session.scalars(query).all())


def of_problem(session: Session, problem_id: int, limit: int) -> list[StudyAnswer]:
    """The newest studies of one problem."""
    query = _with_relations().where(models.Study.problem_id == problem_id).order_by(models.Study.id.desc())
    return _answers(session, session.scalars(query.limit(limit)).all())


def _settled_ms() -> ColumnElement[Any]:
    """The time of the settled winner of a study that a query reads; null where it has none."""
    best, study = models.BestConfiguration, models.Study
    is_own = and_(
        best.problem_id == study.problem_id,
        best.device_model_id == study.device_model_id,
        best.environment_id == study.environment_id,
    )
    return select(best.time_ms).where(is_own, is_current()).correlate(study).limit(1).scalar_subquery()


def count_studies(session: Session, *, kernel: str | None, device_model: str | None) -> int:
    """How many studies there are of this kernel and device model, where given."""
    count: int = session.scalars(_narrowed(select(func.count(models.Study.id)), kernel, device_model)).one()
    return count


def _narrowed(query: Select[Any], kernel: str | None, device_model: str | None) -> Select[Any]:
    if kernel is not None:
        query = query.where(models.Study.problem.has(models.Problem.kernel.has(models.Kernel.name == kernel)))
    if device_model is not None:
        model = select(models.DeviceModel.id).where(models.DeviceModel.slug == device_model)
        query = query.where(models.Study.device_model_id == model.scalar_subquery())
    return query


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
    """Trials of a study or a job in that order; those without a value come last."""
    table = models.Trial
    query = select(table).options(defer(table.warm_samples_ms), defer(table.cold_samples_ms)).where(*where)
    if study_id is not None:
        query = query.where(table.study_id == study_id)
    if job_id is not None:
        query = query.where(table.job_id == job_id)
    ordered = query.order_by(*_ordering(SHORT_ORDERS.get(order, order))).limit(limit).offset(skip)
    return [trial_answer(row) for row in session.scalars(ordered)]


def _ordering(order: str) -> list[Any]:
    table = models.Trial
    spread_ms = case((table.ranking_l2 == "cold", table.cold_spread_ms), else_=table.warm_spread_ms)
    columns: dict[str, list[Any]] = {
        "time": [table.time_ms],
        "trial": [table.id],
        "configuration": [table.configuration],
        "outcome": [cast(table.outcome, Text)],
        "spread": [spread_ms / func.nullif(table.time_ms, 0)],
        "rate": [table.gflops],
        "traffic": [table.gb_per_s],
        "registers": [table.registers, table.spill_bytes],
        "shared": [table.shared_bytes],
        "occupancy": [table.occupancy],
    }
    return [*ordering(columns[order.removeprefix("-")], order), table.id]


def count_trials(session: Session, study_id: int, where: Sequence[ColumnElement[bool]]) -> int:
    """How many trials of the study fulfil the conditions."""
    query = select(func.count()).select_from(models.Trial).where(models.Trial.study_id == study_id, *where)
    return session.scalars(query).one()


class JobTrials(Answer):
    """A job's trials in short: counts by outcome, and each improvement as (place in the job from 1, time in ms)."""

    outcomes: dict[str, int]
    improvements: list[tuple[int, float]]

    @property
    def total(self) -> int:
        """All trials of the job."""
        return sum(self.outcomes.values())


class JobStep(NamedTuple):
    """A trial that was faster than all before it in its job: its place, their total time, its own time."""

    place: int
    spent_s: float
    time_ms: float


def job_steps(session: Session, job_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[JobStep]]:
    """The improvements of each of these jobs, and where its last trial lies."""
    table = models.Trial
    so_far: dict[str, Any] = {"partition_by": table.job_id, "order_by": table.id}
    numbered = (
        select(
            table.job_id,
            func.row_number().over(**so_far).label("place"),
            func.count().over(partition_by=table.job_id).label("last"),
            func.sum(func.coalesce(table.wall_s, 0)).over(**so_far, rows=(None, 0)).label("spent_s"),
            func.min(table.time_ms).over(**so_far, rows=(None, 0)).label("best_ms"),
            func.min(table.time_ms).over(**so_far, rows=(None, -1)).label("before_ms"),
        )
        .where(table.job_id.in_(job_ids))
        .subquery()
    )
    of = numbered.c
    is_step = or_(of.place == of.last, of.before_ms.is_(None), of.best_ms < of.before_ms)
    query = select(of.job_id, of.place, of.spent_s, of.best_ms).where(of.best_ms.is_not(None), is_step)
    found: dict[uuid.UUID, list[JobStep]] = defaultdict(list)
    for job_id, *step in session.execute(query.order_by(of.job_id, of.place)):
        found[job_id].append(JobStep(*step))
    return found


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
    """The answers, with all trials counted in one query and the settled winners read in another."""
    studies_asked = list(rows)
    outcomes: dict[int, dict[str, int]] = defaultdict(dict)
    fastest_ms: dict[int, float] = {}
    counted = session.execute(
        select(models.Trial.study_id, models.Trial.outcome, func.count(), func.min(models.Trial.time_ms))
        .where(models.Trial.study_id.in_([row.id for row in studies_asked]))
        .group_by(models.Trial.study_id, models.Trial.outcome)
        .order_by(models.Trial.study_id, models.Trial.outcome)
    )
    for study_id, outcome, count, time_ms in counted:
        outcomes[study_id][str(outcome)] = count
        if time_ms is not None:
            fastest_ms[study_id] = time_ms
    winners = _winners(session, [row.id for row in studies_asked])
    return [
        StudyAnswer(
            id=row.id,
            problem=problem_answer(row.problem),
            device_model=row.device_model.slug,
            environment=EnvironmentAnswer.model_validate(row.environment),
            space_size=row.space_size,
            trials=sum(outcomes[row.id].values()),
            outcomes=outcomes[row.id],
            best_ms=winners[row.id][1] if row.id in winners else fastest_ms.get(row.id),
            best_trial=winners[row.id][0] if row.id in winners else None,
            fastest_ms=fastest_ms.get(row.id),
            created_at=row.created_at,
        )
        for row in studies_asked
    ]


def _winners(session: Session, ids: Sequence[int]) -> dict[int, tuple[int, float]]:
    """Number and time of the valid settled winner of each study."""
    best, study = models.BestConfiguration, models.Study
    own = and_(
        best.problem_id == study.problem_id,
        best.device_model_id == study.device_model_id,
        best.environment_id == study.environment_id,
        is_current(),
    )
    query = select(study.id, models.Trial.number, best.time_ms).join(best, own).join(best.trial)
    found = session.execute(query.where(study.id.in_(ids)))
    return {study_id: (number, time_ms) for study_id, number, time_ms in found}
