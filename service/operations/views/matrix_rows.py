"""Rows of the matrix: each problem with what is known on each device model, chosen and told as `best` answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, literal, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.answers import Answer, Match, ProblemAnswer
from tilewright.service.operations.best.answer import BestQuery
from tilewright.service.operations.best.results import ResultAnswer, measured_fields
from tilewright.service.operations.best.rows import full_rows, in_preference
from tilewright.service.operations.best.stored import StoredBest, stored_best
from tilewright.service.operations.best_cache.current_answers import CurrentAnswer, current_answers
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.registry import catalogue, limits_of
from tilewright.service.operations.staleness.regressions import slowdowns
from tilewright.service.operations.staleness.standing import Source, Standing, StandingFacts, source_keys
from tilewright.service.store import models
from tilewright.service.store.models import JobState

TUNED = CurrentAnswer(Match.EXACT, 0.0)


class FailureAnswer(Answer):
    """The newest failed job of a pair that has no best configuration."""

    job_id: UUID
    study_id: int | None
    error: str | None
    finished_at: datetime | None


class CellAnswer(Answer):
    """One problem on one device model, as `best` answers it."""

    device_model: str
    match: Match | None = Field(description="How `best` answers; null where it has no answer, and `refused` says why.")
    expected_loss: float | None = Field(default=None, description="As in the answer of `best`.")
    shipped: str | None = Field(default=None, description="As in the answer of `best`.")
    refused: str | None = None
    pending: bool = Field(default=False, description="The answer is being computed; then `match` is null.")
    result: ResultAnswer | None
    is_usable: bool = Field(
        description="Whether the kernel still admits the configuration; if not, `best` answers with another."
    )
    environments: int = Field(description="Environments that have a best; `result` is the one that `best` prefers.")
    failure: FailureAnswer | None


class ProblemRow(Answer):
    """One problem with a cell for every device model."""

    problem: ProblemAnswer
    family: str
    cells: list[CellAnswer]


class DeclaredKernel:
    """A kernel in its present state, as a key: with other sources it is another."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.keys = kernel, source_keys(kernel)
        self._key = (kernel.name, *self.keys.values())
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredKernel) and other._key == self._key


@dataclass(frozen=True)
class Shown:
    """A problem of the page; the last two are None where its kernel is not here, or no longer admits it."""

    answer: ProblemAnswer
    family: str
    declared: DeclaredKernel | None
    problem: Problem | None


@dataclass(frozen=True)
class Known:
    """The preferred best of a pair, and the number of environments with a best."""

    result: ResultAnswer
    is_usable: bool
    environments: int


def problem_rows(
    session: Session,
    ids: Sequence[int],
    family: ColumnElement[str],
    *,
    shown: Sequence[str] | None = None,
    memory: BestMemory | None = None,
    are_whole: bool = False,
) -> list[ProblemRow]:
    """A row for each of these problems, in order, with the cells of the device models `shown`; None: of all.

    `are_whole`: answers that are missing in memory are noted as `current_answers` does.
    """
    table = models.DeviceModel
    rows = {row.slug: row for row in session.scalars(select(table)) if shown is None or row.slug in shown}
    problems = _problems(session, ids, family)
    known = _known(session, problems, {slug: limits_of(row) for slug, row in rows.items()})
    slugs = sorted(rows, key=lambda slug: (rows[slug].kind == "cpu", slug))
    places = [(i, slug) for i in ids for slug in slugs]
    unknown = [place for place in places if place not in known or not known[place].is_usable]
    asked = [(problems[i].answer, slug) for i, slug in unknown]
    answers = current_answers(session, asked, memory, are_whole=are_whole)
    otherwise = dict(zip(unknown, answers, strict=True))
    failures = _failures(session, ids)
    cells = {
        place: _cell(place[1], known.get(place), failures.get(place), otherwise.get(place, TUNED)) for place in places
    }
    return [
        ProblemRow(problem=problems[i].answer, family=problems[i].family, cells=[cells[i, slug] for slug in slugs])
        for i in ids
    ]


def problem_cells(
    session: Session, problem: ProblemAnswer, row_id: int | None, slugs: Sequence[str], memory: BestMemory | None
) -> list[CellAnswer]:
    """The cells of one problem on these device models, whose predictions are in memory unless they are pending.

    `row_id`: its row, None where nobody has tuned it.
    """
    if row_id is not None:
        return problem_rows(session, [row_id], literal(""), shown=slugs, memory=memory, are_whole=True)[0].cells
    answers = current_answers(session, [(problem, slug) for slug in slugs], memory, are_whole=True)
    return [_cell(slug, None, None, answer) for slug, answer in zip(slugs, answers, strict=True)]


def _cell(
    slug: str,
    known: Known | None,
    failure: FailureAnswer | None,
    answer: CurrentAnswer | str,
) -> CellAnswer:
    answered, refused = (None, answer) if isinstance(answer, str) else (answer, None)
    return CellAnswer(
        device_model=slug,
        match=answered.match if answered else None,
        expected_loss=answered.expected_loss if answered else None,
        shipped=answered.shipped if answered else None,
        refused=refused,
        pending=answered is not None and answered.match is None,
        result=known.result if known else None,
        is_usable=known is not None and known.is_usable,
        environments=known.environments if known else 0,
        failure=None if known else failure,
    )


def _problems(session: Session, ids: Sequence[int], family: ColumnElement[str]) -> dict[int, Shown]:
    table = models.Problem
    # Only the kernel's name: its declaration would be read from JSON once for each problem.
    columns = (table.id, models.Kernel.name.label("kernel"), table.shape, table.dtype, table.options, family)
    rows = session.execute(select(*columns).join(table.kernel).where(table.id.in_(ids))).all()
    here = catalogue().by_name
    declared = {name: DeclaredKernel(here[name]) for name in {row.kernel for row in rows} if name in here}
    return {
        row.id: Shown(
            ProblemAnswer(kernel=row.kernel, shape=row.shape, dtype=row.dtype, options=row.options),
            row[-1],
            declared.get(row.kernel),
            _asked(here.get(row.kernel), row),
        )
        for row in rows
    }


def _asked(kernel: Kernel | None, row: Any) -> Problem | None:
    try:
        return None if kernel is None else kernel.problem(row.shape, row.dtype, row.options)
    except InvalidProblemError:
        return None  # of an option or a shape that the kernel no longer has


def _known(
    session: Session, problems: Mapping[int, Shown], limits: Mapping[str, Limits]
) -> dict[tuple[int, str], Known]:
    """The preferred best of each pair that has one, by problem's id and device model's slug."""
    problem_id = models.Problem.id
    rows = session.execute(full_rows(problem_id).where(problem_id.in_(problems)).order_by(models.BestConfiguration.id))
    groups: dict[tuple[int, str], list[StoredBest]] = {}
    for row in rows:
        best = stored_best(row)
        if best.device_model in limits:
            groups.setdefault((row[-1], best.device_model), []).append(best)
    regressed = slowdowns(session, list(problems))
    return {
        place: _preferred(problems[place[0]], group, limits[place[1]], regressed) for place, group in groups.items()
    }


def _preferred(shown: Shown, group: Sequence[StoredBest], limits: Limits, regressed: Mapping[int, float]) -> Known:
    declared, problem = shown.declared, shown.problem
    if declared is None:  # only workers have it, or it was imported: the newest, and one of here before others
        best = max(group, key=lambda row: (row.environment.origin is None, row.verified_at, row.environment_id))
        result = _result(shown.answer, best, Standing(best.seen.moved), regressed.get(best.id))
        return Known(result, is_usable=False, environments=len(group))
    rows = in_preference(declared.kernel, group)
    judged = [_judged(declared, problem, limits, row.configuration, row.seen, row.source) for row in rows]
    place = next((place for place, (_, is_usable) in enumerate(judged) if is_usable), 0)
    best, (standing, is_usable) = rows[place], judged[place]
    return Known(_result(shown.answer, best, standing, regressed.get(best.id)), is_usable, len(group))


@lru_cache(maxsize=1 << 14)
def _judged(
    declared: DeclaredKernel,
    problem: Problem | None,
    limits: Limits,
    configuration: Configuration,
    seen: StandingFacts,
    source: Source,
) -> tuple[Standing, bool]:
    """The standing, and whether `best` could hand this configuration out; `problem` is None for one not admitted."""
    if problem is None:
        return seen.standing(declared.keys, source, ()), False
    asked = BestQuery(declared.kernel, problem, "", limits)
    return seen.standing(declared.keys, source, asked.usable_variants), asked.is_member(configuration)


def _result(problem: ProblemAnswer, best: StoredBest, standing: Standing, slowdown: float | None) -> ResultAnswer:
    return ResultAnswer(
        id=best.id,
        problem=problem,
        device_model=best.device_model,
        environment=best.environment,
        variant=best.configuration.variant,
        configuration=dict(best.configuration.items),
        study_id=best.study_id,
        trial_number=best.trial_number,
        retracted_at=None,
        retracted_reason=None,
        retracted_by=None,
        slowdown=slowdown,
        stands_in_for=None,
        **measured_fields(best, standing),
    )


def _failures(session: Session, ids: Sequence[int]) -> dict[tuple[int, str], FailureAnswer]:
    """The newest failed job of each pair, by problem's id and device model's slug."""
    job, model = models.TuningJob, models.DeviceModel
    newest = (
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
        for row in session.execute(newest)
    }
