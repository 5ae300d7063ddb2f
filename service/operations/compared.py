"""Two sides of one kernel's results, problem by problem: device models, environments or times. All in the database."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import ColumnElement, Subquery, and_, case, func, literal, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload

from tilewright.service.operations.answers import Answer, EnvironmentAnswer, ProblemAnswer
from tilewright.service.operations.registry import environment_answer, problem_answer
from tilewright.service.operations.staleness_comparisons import DRIFT, Verdict
from tilewright.service.store import models

MISSING_IN_A, MISSING_IN_B = "missing in a", "missing in b"


@dataclass(frozen=True)
class Side:
    """Whose results: a device model's, in one environment or in its newest, now or as they stood `at` a time."""

    device_model: str
    environment_id: int | None = None
    at: datetime | None = None


class ComparedRow(Answer):
    """One problem. `speedup` is a's time over b's: above 1, b is faster."""

    problem: ProblemAnswer
    verdict: str = Field(description="better, same, worse: b against a; missing in a, missing in b.")
    speedup: float | None
    threshold: float | None = Field(description="The part by which the times must differ not to count as noise.")
    a_ms: float | None
    b_ms: float | None
    a_result: int | None
    b_result: int | None
    a_study: int | None
    b_study: int | None


class ComparedAnswer(Answer):
    """All problems that either side has, the largest change first."""

    geometric_mean: float | None = Field(
        description="Of the speedups of problems that both have; above 1, b is faster."
    )
    counts: dict[str, int]
    items: list[ComparedRow]
    next_cursor: str | None = None


class ChosenEnvironment(Answer):
    """An environment that a device model has results in."""

    id: int
    device_model: str
    environment: EnvironmentAnswer


def compared(session: Session, kernel: str, a: Side, b: Side, *, limit: int = 100) -> ComparedAnswer:
    """The comparison; at most `limit` rows of it, counts and mean over all."""
    rows = _joined(_side(kernel, a, "a"), _side(kernel, b, "b"))
    found = session.execute(
        select(rows.c.verdict, func.count(), func.sum(func.ln(rows.c.speedup))).group_by(rows.c.verdict)
    ).all()
    both = [(count, total) for _, count, total in found if total is not None]
    mean = math.exp(sum(total for _, total in both) / sum(count for count, _ in both)) if both else None
    place = case((rows.c.verdict == Verdict.SAME.value, 2), (rows.c.speedup.is_(None), 1), else_=0)
    change = func.abs(func.ln(func.coalesce(rows.c.speedup, 1.0)))
    shown = session.execute(select(rows).order_by(place, change.desc(), rows.c.problem_id).limit(limit))
    picked = shown.mappings().all()
    problems = _problems(session, [row["problem_id"] for row in picked])
    return ComparedAnswer(
        geometric_mean=mean,
        counts={verdict: count for verdict, count, _ in found},
        items=[_row(dict(row), problems) for row in picked],
    )


def environments(session: Session, kernel: str) -> list[ChosenEnvironment]:
    """Every device model and environment that has results of the kernel, the newest environment first."""
    best, model, environment = models.BestConfiguration, models.DeviceModel, models.Environment
    own = select(best.device_model_id, best.environment_id).distinct().join(best.problem).join(models.Problem.kernel)
    pairs = own.where(models.Kernel.name == kernel).subquery()
    query = (
        select(model.slug, environment)
        .join(pairs, pairs.c.device_model_id == model.id)
        .join(environment, environment.id == pairs.c.environment_id)
        .order_by(model.slug, environment.id.desc())
    )
    return [
        ChosenEnvironment(id=row.id, device_model=slug, environment=environment_answer(row))
        for slug, row in session.execute(query)
    ]


def _side(kernel: str, side: Side, name: str) -> Subquery:
    """A side's best of every problem: measured here before imported, of the newest environment."""
    best, trial, environment = models.BestConfiguration, models.Trial, models.Environment
    half = func.greatest(best.ci_high_ms - best.time_ms, best.time_ms - best.ci_low_ms, 0.0) / best.time_ms
    query = (
        select(best.problem_id, best.id, best.time_ms, trial.study_id, half.label("noise"))
        .ext(distinct_on(best.problem_id))
        .join(best.problem)
        .join(models.Problem.kernel)
        .join(best.device_model)
        .join(environment, environment.id == best.environment_id)
        .join(trial, trial.id == best.trial_id)
        .where(models.Kernel.name == kernel, models.DeviceModel.slug == side.device_model, *_standing(side.at))
        .order_by(best.problem_id, environment.origin.is_not(None), best.environment_id.desc(), best.verified_at.desc())
    )
    if side.environment_id is not None:
        query = query.where(best.environment_id == side.environment_id)
    return query.subquery(name)


def _standing(at: datetime | None) -> list[ColumnElement[bool]]:
    """Conditions on best configurations: those that stand now, or that had been settled at that time."""
    best = models.BestConfiguration
    if at is None:
        return [best.superseded_by_id.is_(None), best.retracted_at.is_(None)]
    return [best.verified_at <= at, or_(best.retracted_at.is_(None), best.retracted_at > at)]


def _joined(a: Subquery, b: Subquery) -> Subquery:
    """Every problem of either side with speedup, threshold and verdict, as `staleness_comparisons.compare` has them."""
    speedup = a.c.time_ms / b.c.time_ms
    threshold = func.sqrt(func.power(a.c.noise, 2) + func.power(b.c.noise, 2) + 2 * DRIFT**2)
    is_same = func.abs(func.ln(speedup)) <= func.ln(1 + threshold)
    verdict = case(
        (a.c.id.is_(None), literal(MISSING_IN_A)),
        (b.c.id.is_(None), literal(MISSING_IN_B)),
        (is_same, literal(Verdict.SAME.value)),
        (speedup > 1, literal(Verdict.BETTER.value)),
        else_=literal(Verdict.WORSE.value),
    )
    return (
        select(
            func.coalesce(a.c.problem_id, b.c.problem_id).label("problem_id"),
            verdict.label("verdict"),
            speedup.label("speedup"),
            threshold.label("threshold"),
            *(
                column.label(f"{name}_{word}")
                for name, side in (("a", a), ("b", b))
                for word, column in (("ms", side.c.time_ms), ("result", side.c.id), ("study", side.c.study_id))
            ),
        )
        .select_from(a)
        .join(b, and_(a.c.problem_id == b.c.problem_id), full=True)
        .subquery("compared")
    )


def _problems(session: Session, ids: list[int]) -> dict[int, ProblemAnswer]:
    query = select(models.Problem).where(models.Problem.id.in_(ids)).options(joinedload(models.Problem.kernel))
    return {row.id: problem_answer(row) for row in session.scalars(query)}


def _row(row: dict[str, Any], problems: dict[int, ProblemAnswer]) -> ComparedRow:
    return ComparedRow(problem=problems[row.pop("problem_id")], **row)
