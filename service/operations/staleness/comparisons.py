"""Compares the best before a schedule's job with the best after it, and says whether they differ beyond the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import Field
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.family import is_open
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import Answer, Page, ProblemAnswer
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.pages import newest_first
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.operations.staleness.verdict import Verdict
from tilewright.service.store import models
from tilewright.service.store.models import JobState

DRIFT = 0.02
"""How far the times of a steady run may drift (tuner.measure, drift_tolerance): two runs may differ by as much."""

AT_ONCE = 200
"""How many comparisons are settled in one transaction."""


class ComparisonAnswer(Answer):
    """The best before a job of a schedule, and after it. Until the job has ended, all but what names it is null."""

    id: int
    problem: ProblemAnswer
    device_model: str
    job_id: UUID
    verdict: str | None = Field(description="better, same, worse; missing: there is no best before or after.")
    ratio: float | None = Field(description="Time after over time before; below 1 is faster.")
    threshold: float | None = Field(description="The part by which the ratio must differ from 1 not to count as noise.")
    reason: str | None = Field(description="Why the ratio is missing, or why it is 1.")
    before_result: int | None
    before_ms: float | None
    after_result: int | None
    after_ms: float | None
    created_at: datetime
    compared_at: datetime | None


@dataclass(frozen=True)
class TimeInterval:
    """A settled time with its 95 % interval."""

    time_ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, best: models.BestConfiguration) -> TimeInterval:
        """The comparison of a best configuration."""
        return cls(best.time_ms, best.ci_low_ms, best.ci_high_ms)

    @property
    def noise(self) -> float:
        """The larger half of the interval, relative to the time."""
        return max(self.high_ms - self.time_ms, self.time_ms - self.low_ms, 0.0) / self.time_ms


def compare(before: TimeInterval, after: TimeInterval) -> tuple[Verdict, float, float]:
    """Verdict, ratio and threshold; the threshold adds both intervals and each run's possible drift as independent."""
    ratio = after.time_ms / before.time_ms
    threshold = math.sqrt(before.noise**2 + after.noise**2 + 2 * DRIFT**2)
    if abs(math.log(ratio)) <= math.log1p(threshold):
        return Verdict.SAME, ratio, threshold
    return Verdict.BETTER if ratio < 1 else Verdict.WORSE, ratio, threshold


def expect(session: Session, job: models.TuningJob) -> None:
    """Records the current best before a schedule's job, to compare with it when the job is over; none of a family."""
    if is_open(session.get_one(models.Problem, job.problem_id).shape):
        return
    best, environment = models.BestConfiguration, models.Environment
    before = session.scalar(
        select(best.id)
        .join(environment, environment.id == best.environment_id)
        .where(*_of(job), is_current())
        # As they are answered: measured here before imported, and of the newest environment.
        .order_by(environment.origin.is_not(None), best.environment_id.desc())
        .limit(1)
    )
    session.add(models.Comparison(schedule_id=job.schedule_id, job_id=job.id, before_id=before))
    session.flush()


def settle(session: Session) -> None:
    """Gives every comparison whose job is over its verdict; one of the maintenance chores."""
    table, job = models.Comparison, models.TuningJob
    rows = session.scalars(
        select(table)
        .join(table.job)
        .where(table.verdict.is_(None), job.state.not_in(OPEN))
        .order_by(table.id)
        .limit(AT_ONCE)
        .options(joinedload(table.job).joinedload(job.study), joinedload(table.before))
        .with_for_update(of=table, skip_locked=True)
        .execution_options(populate_existing=True)
    )
    for row in rows:
        _settle(session, row)
    session.flush()


def _settle(session: Session, row: models.Comparison) -> None:
    before, after = row.before, _after(session, row.job)
    row.compared_at, row.verdict = func.now(), Verdict.MISSING
    row.after_id = after.id if after else None
    row.reason = _why_missing(row.job, before, after)
    if row.reason is None and before is not None and after is not None:
        row.verdict, row.ratio, row.threshold = compare(TimeInterval.of(before), TimeInterval.of(after))
        if after.id == before.id:
            row.reason = "The best from before the job is still the best."


def _why_missing(
    job: models.TuningJob, before: models.BestConfiguration | None, after: models.BestConfiguration | None
) -> str | None:
    if job.state is not JobState.DONE:
        ended = "The job failed." if job.state is JobState.FAILED else f"The job was {job.state.value}."
        return f"{ended} {job.error}" if job.error else ended
    if after is None:
        return "The job published no best configuration."
    if before is None:
        return "There was no best configuration before the job."
    if before.retracted_at is not None:
        return "The best from before the job was retracted."
    if before.l2 != after.l2:
        return f"Times are not comparable: the L2 cache was {before.l2} before and {after.l2} after."
    return None


def _after(session: Session, job: models.TuningJob) -> models.BestConfiguration | None:
    """The best that the job published; else the current one in its study's environment."""
    best = models.BestConfiguration
    if job.study is None:
        return None
    query = select(best).where(*_of(job), best.environment_id == job.study.environment_id, best.retracted_at.is_(None))
    own = (best.job_id == job.id) & best.stands_in_for_id.is_(None)
    return session.scalars(
        query.where(own | best.superseded_by_id.is_(None)).order_by(own.desc(), best.id.desc()).limit(1)
    ).one_or_none()


def _of(job: models.TuningJob) -> list[ColumnElement[bool]]:
    best = models.BestConfiguration
    return [best.problem_id == job.problem_id, best.device_model_id == job.device_model_id]


def comparisons(
    session: Session, schedule_id: int, *, verdict: str | None = None, limit: int = 50, cursor: str | None = None
) -> Page[ComparisonAnswer]:
    """One page of the comparisons of a schedule's jobs, newest first; raises NotFoundError, InvalidRequestError."""
    if session.get(models.Schedule, schedule_id) is None:
        raise NotFoundError("schedule", str(schedule_id))
    table, job = models.Comparison, models.TuningJob
    of_job = joinedload(table.job)
    query = (
        select(table)
        .where(table.schedule_id == schedule_id)
        .options(
            of_job.joinedload(job.problem).joinedload(models.Problem.kernel),
            of_job.joinedload(job.device_model),
            joinedload(table.before),
            joinedload(table.after),
        )
        .execution_options(populate_existing=True)
    )
    if verdict is not None:
        query = query.where(table.verdict == verdict)
    return newest_first(session, query, table.id, lambda rows: [*map(_answer, rows)], limit=limit, cursor=cursor)


def _answer(row: models.Comparison) -> ComparisonAnswer:
    assert row.job.device_model is not None  # noqa: S101 - a schedule names one
    return ComparisonAnswer.of_row(
        row,
        problem=problem_answer(row.job.problem),
        device_model=row.job.device_model.slug,
        before_result=row.before_id,
        before_ms=row.before.time_ms if row.before else None,
        after_result=row.after_id,
        after_ms=row.after.time_ms if row.after else None,
    )
