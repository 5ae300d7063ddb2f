"""The problems that a schedule tunes when it fires: those listed, the stale, the improvable or those in demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session, aliased, joinedload

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.service.errors import CeilingError, InvalidRequestError, NotFoundError
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.demand.demand import unmet
from tilewright.service.operations.exchange.checks import ImportContext
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.jobs.request import check_job
from tilewright.service.operations.registry import catalogue, device_model_of, problem_row, tuned_for
from tilewright.service.operations.requests import BudgetRequest, JobRequest
from tilewright.service.operations.staleness.standing import only_stale, perhaps_improvable, standings
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.models import ScheduleTarget

LOOKED_AT = 10
"""Problems looked at for each one that a fire may have, because some turn out not to be tunable."""


def problems_to_tune(session: Session, schedule: models.Schedule) -> list[int]:
    """Ids of the problems of one fire, in the order of their jobs: at most `top`, none with a job open on the model."""
    if schedule.target is ScheduleTarget.PROBLEMS:
        named = models.ScheduledProblem
        query = select(named.problem_id).where(named.schedule_id == schedule.id).order_by(named.place)
        return list(session.scalars(query))
    assert schedule.top is not None  # noqa: S101 - a constraint of the table
    problem_ids: Iterable[int]
    match schedule.target:
        case ScheduleTarget.STALE:
            problem_ids = _stale(session, schedule)
        case ScheduleTarget.IMPROVABLE:
            problem_ids = _improvable(session, schedule)
        case _:
            problem_ids = _demanded(session, schedule)
    return list(islice(problem_ids, schedule.top))


def nothing_found(target: ScheduleTarget) -> str:
    """The reason of a fire that created no jobs."""
    return {
        ScheduleTarget.PROBLEMS: "The schedule lists no problems.",
        ScheduleTarget.STALE: "No problem is stale.",
        ScheduleTarget.IMPROVABLE: "No problem is improvable.",
        ScheduleTarget.DEMAND: "Every requested problem has been tuned.",
    }[target]


def _stale(session: Session, schedule: models.Schedule) -> Iterator[int]:
    """Problems whose bests are all stale, the one verified longest ago first."""
    best = models.BestConfiguration
    fresh = _fresh(session, schedule, best.problem_id).where(models.Environment.origin.is_(None))
    oldest = func.min(best.verified_at)
    query = (
        only_stale(session, select(best.problem_id).where(*_current(schedule), *_is_free(schedule, best.problem_id)))
        .where(best.problem_id.not_in(fresh))
        .group_by(best.problem_id)
        .order_by(oldest, best.problem_id)
        .limit(LOOKED_AT * (schedule.top or 0))
    )
    return _tunable(session, schedule, session.scalars(query).all())


def _improvable(session: Session, schedule: models.Schedule) -> Iterator[int]:
    """Problems whose best's study has not tried all variants, the one verified longest ago first.

    A study of an old environment gets no more trials: it counts only where there is no newer one.
    """
    best = models.BestConfiguration
    is_newest = or_(
        best.id.in_(_fresh(session, schedule, best.id)),
        best.problem_id.not_in(_fresh(session, schedule, best.problem_id)),
    )
    query: Any = (
        perhaps_improvable(session, select(best.id, best.problem_id))
        .where(*_current(schedule), *_is_free(schedule, best.problem_id), is_newest)
        .order_by(best.verified_at, best.id)
        .limit(LOOKED_AT * (schedule.top or 0))
    )
    rows = session.execute(query).all()
    known = standings(session, [row.id for row in rows]) if rows else {}
    return _tunable(session, schedule, dict.fromkeys(row.problem_id for row in rows if known[row.id].improvable))


def _demanded(session: Session, schedule: models.Schedule) -> Iterator[int]:
    """Requested, untuned problems, the most requested first, without those whose launches take very long.

    Every reader can request any problem, as often as they like.
    """
    demand = models.Demand
    kernels = catalogue().by_name
    mine = demand.device_model_id == schedule.device_model_id
    model = device_model_of(schedule.device_model)
    for row in unmet(session, [mine], kernel=schedule.kernel, limit=LOOKED_AT * (schedule.top or 0)):
        if row.kernel not in kernels or not _is_tunable(session, schedule, row.kernel, row):
            continue
        asked = tuned_for(kernels[row.kernel], row.shape, row.dtype, row.options)
        problem = asked.largest if isinstance(asked, Family) else asked
        query = BestQuery(kernels[row.kernel], problem, model.slug, model.limits)
        if ImportContext(query, model, ()).least_launch_ms > settings().demand_most_ms:
            continue
        problem_id = problem_row(session, asked).id
        if session.scalar(select(models.Problem.id).where(models.Problem.id == problem_id, *_is_free(schedule))):
            yield problem_id


def _current(schedule: models.Schedule) -> list[ColumnElement[bool]]:
    best, problem, kernel = models.BestConfiguration, aliased(models.Problem), aliased(models.Kernel)
    conditions = [
        best.superseded_by_id.is_(None),
        best.retracted_at.is_(None),
        best.device_model_id == schedule.device_model_id,
    ]
    if schedule.kernel is not None:
        named = select(problem.id).join(kernel, kernel.id == problem.kernel_id).where(kernel.name == schedule.kernel)
        conditions.append(best.problem_id.in_(named))
    return conditions


def _fresh(session: Session, schedule: models.Schedule, column: Any) -> Any:
    """One column of the device model's bests that are not stale."""
    return only_stale(session, select(column).where(*_current(schedule)), wanted=False).correlate(None)


def _is_free(schedule: models.Schedule, problem_id: Any = models.Problem.id) -> list[ColumnElement[bool]]:
    """Conditions for a problem that has no open job on the device model."""
    job = aliased(models.TuningJob)
    there = select(job.id).where(
        job.problem_id == problem_id, job.device_model_id == schedule.device_model_id, job.state.in_(OPEN)
    )
    return [~there.exists()]


def _tunable(session: Session, schedule: models.Schedule, problem_ids: Iterable[int]) -> Iterator[int]:
    ids: Sequence[int] = list(problem_ids)
    query = select(models.Problem).where(models.Problem.id.in_(ids)).options(joinedload(models.Problem.kernel))
    rows = {row.id: row for row in session.scalars(query)}
    return (i for i in ids if _is_tunable(session, schedule, rows[i].kernel.name, rows[i]))


def _is_tunable(
    session: Session, schedule: models.Schedule, kernel: str, problem: models.Problem | models.Demand
) -> bool:
    """Whether a job would be accepted; for a kernel that only workers have, it is assumed."""
    if kernel not in catalogue().by_name:
        return True
    try:
        request = JobRequest(
            kernel=kernel,
            shape=problem.shape,
            dtype=problem.dtype,
            options=problem.options,
            device_model=schedule.device_model.slug,
            budget=BudgetRequest(
                trials=schedule.budget_trials, seconds=schedule.budget_seconds, target_ms=schedule.budget_target_ms
            ),
        )
        check_job(session, request)
    except (InvalidRequestError, InvalidProblemError, NotFoundError, CeilingError):
        return False
    return True
