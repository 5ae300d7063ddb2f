"""Compares one kernel's results problem by problem between device models, environments or moments, in the database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import CTE, ColumnElement, Subquery, case, func, literal, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import Answer, EnvironmentAnswer, ProblemAnswer
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.staleness.comparisons import DRIFT
from tilewright.service.operations.staleness.standing import in_preference_of_best, is_current, with_staleness
from tilewright.service.operations.staleness.verdict import Verdict
from tilewright.service.store import models

MISSING_IN_A, MISSING_IN_B = "missing in a", "missing in b"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a device model's results in one environment, or of any, now or `at` a time."""

    device_model: str
    environment_id: int | None = None
    at: datetime | None = None


class ComparedRow(Answer):
    """One problem. `speedup` is a's time over b's: above 1, b is faster."""

    problem: ProblemAnswer
    verdict: str = Field(description="better, same, worse: b against a; missing in a, missing in b.")
    speedup: float | None
    threshold: float | None = Field(description="The part by which the times must differ not to count as noise.")
    interval: tuple[float, float] | None = Field(
        None, description="Of the speedup, as wide as the noise: it holds 1 where the verdict is `same`."
    )
    a_ms: float | None
    b_ms: float | None
    a_result: int | None
    b_result: int | None
    a_study: int | None
    b_study: int | None


class ComparedAnswer(Answer):
    """Every problem with a result on either side, the largest change first."""

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


MOST_ROWS = 1000
"""The most rows of one answer."""


def compared(session: Session, kernel: str, a: Side, b: Side, *, limit: int = 100) -> ComparedAnswer:
    """The comparison; at most `limit` rows of it, counts and mean over all.

    Raises InvalidRequestError where a side's environment is not one of its device model.
    """
    for name, side in (("a", a), ("b", b)):
        _check_environment(session, f"{name}_environment", side)
    rows = _joined(_side(session, kernel, a, "a"), _side(session, kernel, b, "b"))
    place = case((rows.c.verdict == Verdict.SAME.value, 2), (rows.c.speedup.is_(None), 1), else_=0)
    change = func.abs(func.ln(func.coalesce(rows.c.speedup, 1.0)))
    # One statement: the comparison is made once, for the counts over all of it and for the rows shown.
    query = select(rows, _totals(rows)).order_by(place, change.desc(), rows.c.problem_id).limit(limit)
    picked = [dict(row) for row in session.execute(query).mappings()]
    totals: dict[str, tuple[int, float | None]] = picked[0]["totals"] if picked else {}
    both = [(count, total) for count, total in totals.values() if total is not None]
    mean = math.exp(sum(total for _, total in both) / sum(count for count, _ in both)) if both else None
    problems = _problems(session, [row["problem_id"] for row in picked])
    studies = _studies(session, picked)
    return ComparedAnswer(
        geometric_mean=mean,
        counts={verdict: count for verdict, (count, _) in totals.items()},
        items=[_row(row, problems, studies) for row in picked],
    )


def _check_environment(session: Session, field: str, side: Side) -> None:
    """Refuses an environment without results of the side's device model, where every problem would count as missing."""
    if side.environment_id is None:
        return
    study, model = models.Study, models.DeviceModel
    query = select(study.id).join(model, model.id == study.device_model_id)
    query = query.where(model.slug == side.device_model, study.environment_id == side.environment_id).limit(1)
    if session.scalar(query) is None:
        raise InvalidRequestError(
            field, f"{side.device_model} has no results in the environment {side.environment_id}."
        )


def _totals(rows: CTE) -> ColumnElement[Any]:
    """The number of problems of each verdict and the sum of the logarithms of their speedups; null where none has
    one.
    """
    by_verdict = (
        select(
            rows.c.verdict,
            func.jsonb_build_array(func.count(), func.sum(func.ln(rows.c.speedup))).label("total"),
        )
        .group_by(rows.c.verdict)
        .subquery("by_verdict")
    )
    return select(func.jsonb_object_agg(by_verdict.c.verdict, by_verdict.c.total)).scalar_subquery().label("totals")


def environments(session: Session, kernel: str) -> list[ChosenEnvironment]:
    """Every device model and environment that has results of the kernel, the newest environment first."""
    best, model, environment = models.BestConfiguration, models.DeviceModel, models.Environment
    pairs = select(best.device_model_id, best.environment_id).distinct().subquery()
    of_pair = select(best.id).join(best.problem).join(models.Problem.kernel).where(models.Kernel.name == kernel)
    of_pair = of_pair.where(
        best.device_model_id == pairs.c.device_model_id, best.environment_id == pairs.c.environment_id
    )
    query = (
        select(model.slug, environment)
        .join(pairs, pairs.c.device_model_id == model.id)
        .join(environment, environment.id == pairs.c.environment_id)
        .where(of_pair.limit(1).correlate(pairs).scalar_subquery().is_not(None))  # stops at the first of each pair
        .order_by(model.slug, environment.id.desc())
    )
    return [
        ChosenEnvironment(id=row.id, device_model=slug, environment=EnvironmentAnswer.model_validate(row))
        for slug, row in session.execute(query)
    ]


def _side(session: Session, kernel: str, side: Side, name: str) -> Subquery:
    """One side's best of every problem: the one that `best` prefers now; of an environment, or at a time, the last
    measured, one of here before an imported one.
    """
    best, environment = models.BestConfiguration, models.Environment
    # Looked up by the statement itself, once: joined they would be compared with every row.
    kernel_id = select(models.Kernel.id).where(models.Kernel.name == kernel).scalar_subquery()
    model_id = select(models.DeviceModel.id).where(models.DeviceModel.slug == side.device_model).scalar_subquery()
    half = func.greatest(best.ci_high_ms - best.time_ms, best.time_ms - best.ci_low_ms, 0.0) / best.time_ms
    columns = (best.problem_id, best.id, best.time_ms, half.label("noise"))
    wanted = select(best.id).ext(distinct_on(best.problem_id)).join(best.problem)
    wanted = wanted.where(models.Problem.kernel_id == kernel_id, best.device_model_id == model_id, *_standing(side.at))
    if side.environment_id is None and side.at is None:
        rows, is_stale = with_staleness(session, wanted)
        order = in_preference_of_best(is_stale)
    else:
        rows = wanted.join(environment, environment.id == best.environment_id)
        if side.environment_id is not None:
            rows = rows.where(best.environment_id == side.environment_id)
        order = [environment.origin.is_not(None), best.verified_at.desc(), best.environment_id.desc()]
    return rows.with_only_columns(*columns).order_by(best.problem_id, *order).subquery(name)


def _standing(at: datetime | None) -> list[ColumnElement[bool]]:
    """Conditions for bests that are valid now, or that were at that time."""
    best = models.BestConfiguration
    if at is None:
        return [is_current()]
    return [best.verified_at <= at, or_(best.retracted_at.is_(None), best.retracted_at > at)]


def _joined(a: Subquery, b: Subquery) -> CTE:
    """Every problem of either side with speedup, threshold and verdict, as `staleness.comparisons.compare` has them."""
    speedup = a.c.time_ms / b.c.time_ms
    threshold = func.sqrt(a.c.noise * a.c.noise + b.c.noise * b.c.noise + 2 * DRIFT**2)
    is_same = func.greatest(speedup, 1 / speedup) <= 1 + threshold
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
                for word, column in (("ms", side.c.time_ms), ("result", side.c.id))
            ),
        )
        .select_from(a)
        .join(b, a.c.problem_id == b.c.problem_id, full=True)
        .cte("compared")
    )


def _problems(session: Session, ids: list[int]) -> dict[int, ProblemAnswer]:
    query = select(models.Problem).where(models.Problem.id.in_(ids)).options(joinedload(models.Problem.kernel))
    return {row.id: problem_answer(row) for row in session.scalars(query)}


def _studies(session: Session, rows: Sequence[dict[str, Any]]) -> dict[int | None, int]:
    """The study of each result of these rows."""
    best, trial = models.BestConfiguration, models.Trial
    ids = [row[name] for row in rows for name in ("a_result", "b_result") if row[name] is not None]
    query = select(best.id, trial.study_id).join(trial, trial.id == best.trial_id).where(best.id.in_(ids))
    return {row.id: row.study_id for row in session.execute(query)}


def _row(row: dict[str, Any], problems: dict[int, ProblemAnswer], studies: dict[int | None, int]) -> ComparedRow:
    known = {name: value for name, value in row.items() if name not in ("problem_id", "totals")}
    a_study, b_study = (studies.get(row[f"{side}_result"]) for side in ("a", "b"))
    speedup, noise = row["speedup"], row["threshold"]
    interval = None if speedup is None else (speedup / (1 + noise), speedup * (1 + noise))
    return ComparedRow(
        problem=problems[row["problem_id"]], **known, interval=interval, a_study=a_study, b_study=b_study
    )
