"""Demand: requested problems that are not tuned. Counted within bounds, listed by traffic, tuned on request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, func, select, text, tuple_
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.family import Family
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import Answer, Page, TunedFor
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.pages import cursor_content, invalid_cursor, ordering, packed_cursor
from tilewright.service.operations.registry import catalogue, row_hash, tuned_for
from tilewright.service.operations.requests import DemandJobs, JobRequest
from tilewright.service.operations.shape_filter import in_order
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.settings import settings
from tilewright.service.store import models

DEMAND_LOCK = 0x64656D61
"""Advisory lock ("dema" in ASCII): processes count one at a time, so that their rows cannot deadlock."""

ORDERS: Mapping[str, bool] = {"requests": True, "problem": False, "model": False, "last": True}
"""The sortable columns of the demand, and whether the greatest values come first."""

_CURSOR = re.compile(rb"([0-9]{1,18})\.([0-9]{1,18})")


@dataclass(frozen=True)
class RequestedProblem:
    """A problem, or a family, that was asked for on a device model; hashable, to be counted."""

    device_model: str
    kernel: str
    shape: tuple[tuple[str, int | str], ...]
    dtype: str
    options: tuple[tuple[str, bool | str], ...]

    @classmethod
    def of(cls, problem: TunedFor | Problem | Family, device_model: str) -> RequestedProblem:
        """The requested problem of an answer, or of a question about a family."""
        return cls(
            device_model,
            problem.kernel,
            tuple((problem.shape if isinstance(problem, TunedFor) else problem.stated_shape).items()),
            problem.dtype,
            tuple(problem.options.items()),
        )


class DemandAnswer(Answer):
    """A requested problem or family that is not tuned, and how often it was requested."""

    problem: TunedFor
    device_model: str
    count: int = Field(description="Requests since it was first asked for.")
    first_asked_at: datetime
    last_asked_at: datetime


class TunedDemand(Answer):
    """One requested problem with its job, or the reason why no job could be made."""

    problem: TunedFor
    device_model: str
    count: int
    job_id: UUID | None
    is_new: bool = Field(description="False: an identical open job was joined.")
    refused: str | None = Field(description="Why no job could be made.")


def count(session: Session, asked: Mapping[RequestedProblem, int]) -> None:
    """Adds the counts; for each kernel and device model only the most requested stay, up to the setting."""
    session.execute(select(func.pg_advisory_xact_lock(DEMAND_LOCK)))
    known = session.execute(select(models.DeviceModel.slug, models.DeviceModel.id))
    model_ids = {row.slug: row.id for row in known}
    kernels = catalogue().by_name
    rows: dict[tuple[int, str, str], tuple[RequestedProblem, int]] = {}
    for requested, times in asked.items():
        if requested.device_model in model_ids and requested.kernel in kernels:
            key = (model_ids[requested.device_model], requested.kernel, _hash(kernels[requested.kernel], requested))
            rows[key] = (requested, times + (rows[key][1] if key in rows else 0))
    if not rows:
        return
    # One parameter: a statement of a thousand rows of seven takes longer to put together than to carry out.
    written = [
        {
            "device_model_id": model_id,
            "problem_hash": problem_hash,
            "kernel": kernel,
            "shape": dict(requested.shape),
            "dtype": requested.dtype,
            "options": dict(requested.options),
            "count": times,
        }
        for (model_id, kernel, problem_hash), (requested, times) in rows.items()
    ]
    session.execute(_ADD, {"rows": json.dumps(written)})
    groups = {(model_id, kernel) for model_id, kernel, _ in rows}
    session.execute(
        _EVICT,
        {
            "models": [model_id for model_id, _ in groups],
            "kernels": [kernel for _, kernel in groups],
            "kept": settings().demand_kept,
        },
    )


_ADD = text(
    """
    INSERT INTO demand (device_model_id, problem_hash, kernel, shape, dtype, options, count)
    SELECT device_model_id, problem_hash, kernel, shape, dtype, options, count
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS asked (device_model_id integer, problem_hash text, kernel text,
        shape jsonb, dtype text, options jsonb, count bigint)
    ON CONFLICT (device_model_id, problem_hash)
    DO UPDATE SET count = demand.count + excluded.count, last_asked_at = now()
    """
)

_EVICT = text(
    """
    DELETE FROM demand WHERE id IN (
        SELECT beyond.id
        FROM unnest(CAST(:models AS integer[]), CAST(:kernels AS text[])) AS written (device_model_id, kernel)
        CROSS JOIN LATERAL (
            SELECT id FROM demand
            WHERE demand.device_model_id = written.device_model_id AND demand.kernel = written.kernel
            ORDER BY last_asked_at > now() - interval '7 days' DESC, count DESC, last_asked_at DESC, id DESC
            OFFSET :kept
        ) AS beyond)
    """
)


def _hash(kernel: Kernel, requested: RequestedProblem) -> str:
    return row_hash(tuned_for(kernel, dict(requested.shape), requested.dtype, dict(requested.options)))


def demand(
    session: Session,
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[DemandAnswer]:
    """One page of the demand, the most requested problems first."""
    table = models.Demand
    conditions = [] if cursor is None else [tuple_(table.count, table.id) < tuple_(*_place(cursor))]
    rows = unmet(session, conditions, kernel=kernel, device_model=device_model, limit=limit + 1)
    more = f"{rows[limit - 1].count}.{rows[limit - 1].id}" if len(rows) > limit else None
    return Page(
        items=[_answer(row) for row in rows[:limit]],
        next_cursor=more and packed_cursor(more.encode()),
    )


def of_problem(session: Session, problem_hash: str) -> list[DemandAnswer]:
    """Requests for one problem on each device model, also where it has been tuned since."""
    table = models.Demand
    query = select(table).where(table.problem_hash == problem_hash).options(joinedload(table.device_model))
    return [_answer(row) for row in session.scalars(query)]


def shown_demand(
    session: Session, *, kernel: str | None, device_model: str | None, order: str, limit: int, skip: int = 0
) -> list[DemandAnswer]:
    """The demand in an order for people, one of ORDERS, with - for downwards."""
    rows = unmet(session, kernel=kernel, device_model=device_model, limit=limit, skip=skip, ordered_by=_ordering(order))
    return [_answer(row) for row in rows]


def _ordering(order: str) -> list[ColumnElement[Any]]:
    table, model = models.Demand, models.DeviceModel
    slug = select(model.slug).where(model.id == table.device_model_id).scalar_subquery()
    columns: dict[str, list[Any]] = {
        "requests": [table.count],
        "problem": in_order(table.kernel, table.shape, table.dtype),
        "model": [slug],
        "last": [table.last_asked_at],
    }
    return [*ordering(columns[order.removeprefix("-")], order), table.count.desc(), table.id.desc()]


def _answer(row: models.Demand) -> DemandAnswer:
    return DemandAnswer(
        problem=_problem(row),
        device_model=row.device_model.slug,
        count=row.count,
        first_asked_at=row.first_asked_at,
        last_asked_at=row.last_asked_at,
    )


def unmet(
    session: Session,
    conditions: Iterable[ColumnElement[bool]] = (),
    *,
    kernel: str | None = None,
    device_model: str | None = None,
    limit: int,
    skip: int = 0,
    ordered_by: Sequence[ColumnElement[Any]] = (models.Demand.count.desc(), models.Demand.id.desc()),
) -> Sequence[models.Demand]:
    """The rows of requested problems without a current best on their device model, and of families that never had a
    table there; the most requested first.
    """
    table = models.Demand
    query = select(table).where(_is_unmet(), *conditions).options(joinedload(table.device_model))
    if kernel is not None:
        query = query.where(table.kernel == kernel)
    if device_model is not None:
        query = query.where(table.device_model.has(models.DeviceModel.slug == device_model))
    query = query.order_by(*ordered_by).limit(limit).offset(skip)
    return session.scalars(query.execution_options(populate_existing=True)).all()


def _is_unmet() -> ColumnElement[bool]:
    """Whether a requested problem has no current best on its device model, and a family no table there."""
    table, best, problem, tabled = models.Demand, models.BestConfiguration, models.Problem, models.FamilyTable
    known = (
        select(best.id)
        .join(problem, problem.id == best.problem_id)
        .where(problem.hash == table.problem_hash, best.device_model_id == table.device_model_id, is_current())
    )
    has_table = (
        select(tabled.id)
        .join(problem, problem.id == tabled.problem_id)
        .where(problem.hash == table.problem_hash, tabled.device_model_id == table.device_model_id)
    )
    return ~known.exists() & ~has_table.exists()


def count_unmet(session: Session) -> dict[str, int]:
    """How many requested problems are not tuned, by kernel."""
    table = models.Demand
    query = select(table.kernel, func.count().label("problems")).where(_is_unmet()).group_by(table.kernel)
    return {row.kernel: row.problems for row in session.execute(query)}


def tune_top(
    session: Session, request: DemandJobs, *, top: int, kernel: str | None = None, device_model: str | None = None
) -> list[TunedDemand]:
    """A job for each of the `top` problems asked for most; sent again, it joins those that are still open.

    A problem that no job can be made for is passed on with the reason. Raises CeilingError like `request_job`: then
    nothing is queued.
    """
    rows = unmet(session, kernel=kernel, device_model=device_model, limit=top)
    return [tune_one(session, request, _problem(row), row.device_model.slug, row.count) for row in rows]


def tune_one(session: Session, request: DemandJobs, problem: TunedFor, slug: str, count: int) -> TunedDemand:
    """A job for the problem, or the reason why none can be made; raises CeilingError."""
    job_id, is_new, refused = None, False, None
    try:
        job_request = JobRequest(
            **problem.model_dump(), device_model=slug, budget=request.budget, priority=request.priority
        )
        job, is_new = request_job(session, job_request)
        job_id = job.id
    except (InvalidRequestError, InvalidProblemError) as error:
        refused = f"{error.field}: {error.reason}"
    return TunedDemand(problem=problem, device_model=slug, count=count, job_id=job_id, is_new=is_new, refused=refused)


def _problem(row: models.Demand) -> TunedFor:
    """The problem with its axes in the kernel's order, which JSONB forgets."""
    kernel = catalogue().by_name.get(row.kernel)
    shape = (kernel.ordered(row.shape) if kernel else {}) | row.shape
    return TunedFor(kernel=row.kernel, shape=shape, dtype=row.dtype, options=row.options)


def _place(cursor: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(cursor_content(cursor))
    if match is None:
        raise invalid_cursor()
    return int(match[1]), int(match[2])
