"""The table of problems by device models on the first page and in its API: each pair's best, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased, joinedload

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.problem import Limits, OptionValue
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import Answer, Match, Page, ProblemAnswer
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.best.results import ResultAnswer, current_results, result_answers, with_relations
from tilewright.service.operations.catalog import kernel as kernel_declared
from tilewright.service.operations.pages import cursor_of, row_id_of
from tilewright.service.operations.registry import catalogue, limits_of, problem_answer
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.operations.views.families import family
from tilewright.service.store import models
from tilewright.service.store.models import JobState

MAX_FAILED = 20
"""The most problems without a best, whose newest job failed, that come first on the first page."""


class FailureAnswer(Answer):
    """The newest failed job of a pair that has no best configuration."""

    job_id: UUID
    study_id: int | None
    error: str | None
    finished_at: datetime | None


class CellAnswer(Answer):
    """One problem on one device model; `match`: how `best` probably answers, told without asking it."""

    device_model: str
    match: Match
    result: ResultAnswer | None
    is_usable: bool = Field(
        description="Whether the kernel still admits the configuration; if not, `best` answers with another."
    )
    environments: int = Field(description="Environments that have a best; `result` is the newest one's.")
    failure: FailureAnswer | None


class ProblemRow(Answer):
    """One problem with a cell for every device model."""

    problem: ProblemAnswer
    family: str
    cells: list[CellAnswer]


def matrix(
    session: Session,
    kernel_name: str,
    *,
    dtype: str | None = None,
    options: Mapping[str, OptionValue] | None = None,
    shape: Mapping[str, int] | None = None,
    family_name: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ProblemRow]:
    """One page of problems, the last tuned first, with every device model's cell; raises NotFoundError."""
    axes = kernel_declared(session, kernel_name).declaration["axes"]
    # Its id as a number, not a join: only so can the database tell a kernel of many results from one of few.
    kernel_id = session.scalar(select(models.Kernel.id).where(models.Kernel.name == kernel_name))
    if kernel_id is None:  # no worker has declared it yet
        return Page(items=[])
    conditions = [models.Problem.kernel_id == kernel_id, *_wanted(dtype, options or {}, shape or {})]
    shown = family(axes)
    if family_name is not None:
        conditions.append(shown == family_name)
    query = _by_aggregate(conditions) if family_name is not None else _newest_first(conditions)
    page_ids, more = _page(session, query, limit, cursor)
    ids = [*(_failed(session, conditions) if cursor is None else ()), *page_ids]
    return Page(items=_rows(session, list(dict.fromkeys(ids)), shown), next_cursor=more)


def _wanted(
    dtype: str | None, options: Mapping[str, OptionValue], shape: Mapping[str, int]
) -> list[ColumnElement[bool]]:
    problem = models.Problem
    conditions: list[ColumnElement[bool]] = []
    if dtype is not None:
        conditions.append(problem.dtype == dtype)
    if options:
        conditions.append(problem.options.contains(dict(options)))
    if shape:
        conditions.append(problem.shape.contains(dict(shape)))
    return conditions


def _newest_first(conditions: Sequence[ColumnElement[bool]]) -> Select[int, int]:
    """Each problem with its newest current best, so that the database reads back from the newest and stops early."""
    best, newer = models.BestConfiguration, aliased(models.BestConfiguration)
    has_newer = select(newer.id).where(
        newer.problem_id == best.problem_id, newer.id > best.id, newer.superseded_by_id.is_(None)
    )
    has_newer = has_newer.where(newer.retracted_at.is_(None)).correlate(best)
    query = select(best.problem_id, best.id.label("newest")).join(best.problem).where(*conditions)
    return query.where(is_current(), ~has_newer.exists())


def _by_aggregate(conditions: Sequence[ColumnElement[bool]]) -> Select[int, int]:
    """The same by aggregation, for a filter that few problems may pass: reading newest first would visit them all."""
    best = models.BestConfiguration
    query = select(best.problem_id, func.max(best.id).label("newest")).join(best.problem).where(*conditions)
    query = query.where(is_current()).group_by(best.problem_id)
    newest = query.subquery()
    return select(newest.c.problem_id, newest.c.newest)


def _page(session: Session, query: Select[int, int], limit: int, cursor: str | None) -> tuple[list[int], str | None]:
    """Problems by their newest current best, and the cursor of the next page."""
    newest = query.selected_columns.newest
    if cursor is not None:
        query = query.where(newest < row_id_of(cursor))
    rows = session.execute(query.order_by(newest.desc()).limit(limit + 1)).all()
    more = cursor_of(rows[limit - 1].newest) if len(rows) > limit else None
    return [row.problem_id for row in rows[:limit]], more


def _failed(session: Session, conditions: Sequence[ColumnElement[bool]]) -> list[int]:
    """Problems whose job failed and that have no best, the newest job first."""
    best, job = models.BestConfiguration, models.TuningJob
    known = select(best.id).where(best.problem_id == job.problem_id, is_current())
    query = select(job.problem_id).join(models.Problem, models.Problem.id == job.problem_id)
    query = query.where(*conditions, job.state == JobState.FAILED, ~known.exists())
    newest_first = query.group_by(job.problem_id).order_by(func.max(job.created_at).desc())
    return list(session.scalars(newest_first.limit(MAX_FAILED)))


def _rows(session: Session, ids: Sequence[int], shown: ColumnElement[str]) -> list[ProblemRow]:
    problems = _problems(session, ids, shown)
    results, failures = _results(session, ids), _failures(session, ids)
    kinds = {row.slug: row.kind for row in session.execute(select(models.DeviceModel.slug, models.DeviceModel.kind))}
    tuned = _tuned_models(session, [problem for problem, _ in problems.values()])
    rows = []
    for problem_id in ids:
        problem, name = problems[problem_id]
        alike = tuned.get(_alike(problem.dtype, problem.options), set())
        cells = [
            _cell(
                slug, results.get((problem_id, slug), []), failures.get((problem_id, slug)), _else(slug, kinds, alike)
            )
            for slug in sorted(kinds, key=lambda slug: (kinds[slug] == "cpu", slug))
        ]
        rows.append(ProblemRow(problem=problem, family=name, cells=cells))
    return rows


def _tuned_models(session: Session, problems: Sequence[ProblemAnswer]) -> dict[str, set[str]]:
    """The device models that have a best with a problem's dtype and options, for each such pair."""
    best, problem, model = models.BestConfiguration, models.Problem, models.DeviceModel
    models_by_kind: dict[str, set[str]] = {}
    for example in {_alike(p.dtype, p.options): p for p in problems}.values():
        own = select(best.id).join(problem, problem.id == best.problem_id).join(problem.kernel)
        own = own.where(
            models.Kernel.name == example.kernel, problem.dtype == example.dtype, problem.options == example.options
        )
        own = own.where(best.device_model_id == model.id, is_current())
        first = own.limit(1).correlate(model).scalar_subquery()  # stops at the first, where EXISTS would join them all
        models_by_kind[_alike(example.dtype, example.options)] = set(
            session.scalars(select(model.slug).where(first.is_not(None)))
        )
    return models_by_kind


def _alike(dtype: str, options: Mapping[str, OptionValue]) -> str:
    return f"{dtype} {sorted(options.items())}"


def _else(slug: str, kinds: Mapping[str, str], tuned_on: set[str]) -> Match:
    """How `best` probably answers a problem without a best here, told without asking it."""
    if slug in tuned_on:
        return Match.NEAREST
    return Match.TRANSFERRED if any(kinds[other] == kinds[slug] for other in tuned_on) else Match.DEFAULT


@dataclass(frozen=True)
class CellResult:
    """A best configuration, and whether the kernel still admits it."""

    result: ResultAnswer
    is_usable: bool


def _cell(slug: str, results: Sequence[CellResult], failure: FailureAnswer | None, otherwise: Match) -> CellAnswer:
    own = [known for known in results if known.result.environment.origin is None] or results
    newest = max(own, key=lambda known: known.result.verified_at, default=None)
    return CellAnswer(
        device_model=slug,
        match=Match.EXACT if newest and newest.is_usable else otherwise,
        result=newest.result if newest else None,
        is_usable=newest is not None and newest.is_usable,
        environments=len(results),
        failure=None if newest else failure,
    )


def _problems(session: Session, ids: Sequence[int], shown: ColumnElement[str]) -> dict[int, tuple[ProblemAnswer, str]]:
    query = select(models.Problem, shown).where(models.Problem.id.in_(ids)).options(joinedload(models.Problem.kernel))
    return {row.id: (problem_answer(row), name) for row, name in session.execute(query)}


def _results(session: Session, ids: Sequence[int]) -> dict[tuple[int, str], list[CellResult]]:
    best = models.BestConfiguration
    query = with_relations(current_results(select(best), None, None)).where(best.problem_id.in_(ids))
    query = query.order_by(best.id.desc())  # of several verified at one moment the newest comes first
    results: dict[tuple[int, str], list[CellResult]] = {}
    rows = session.scalars(query).all()
    limits = {row.device_model_id: limits_of(row.device_model) for row in rows}
    for row, answer in zip(rows, result_answers(session, rows), strict=True):
        known = CellResult(answer, _is_usable(row, limits[row.device_model_id]))
        results.setdefault((row.problem_id, row.device_model.slug), []).append(known)
    return results


def _is_usable(row: models.BestConfiguration, limits: Limits) -> bool:
    """Whether `best` could hand the configuration out: it is a member of the problem's space today."""
    kernel = catalogue().by_name.get(row.problem.kernel.name)
    if kernel is None:
        return False
    try:
        problem = kernel.problem(row.problem.shape, row.problem.dtype, row.problem.options)
    except InvalidProblemError:
        return False  # of an option that the kernel no longer has
    asked = BestQuery(kernel, problem, row.device_model.slug, limits)
    return asked.is_member(Configuration.from_json(row.trial.configuration))


def _failures(session: Session, ids: Sequence[int]) -> dict[tuple[int, str], FailureAnswer]:
    job, model = models.TuningJob, models.DeviceModel
    query = (
        select(job.problem_id, model.slug, job.id, job.study_id, job.error, job.finished_at)
        .join(model, model.id == job.device_model_id)
        .where(job.problem_id.in_(ids), job.state == JobState.FAILED)
        .ext(distinct_on(job.problem_id, model.slug))
        .order_by(job.problem_id, model.slug, job.created_at.desc())
    )
    return {
        (row.problem_id, row.slug): FailureAnswer(
            job_id=row.id, study_id=row.study_id, error=row.error, finished_at=row.finished_at
        )
        for row in session.execute(query)
    }


def newest_kernel(session: Session) -> str | None:
    """The kernel that was tuned last; None while nothing is."""
    best = models.BestConfiguration
    query = select(models.Kernel.name).join(models.Problem, models.Problem.kernel_id == models.Kernel.id)
    return session.scalar(query.join(best, best.problem_id == models.Problem.id).order_by(best.id.desc()).limit(1))
