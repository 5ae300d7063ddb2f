"""Today's answers for the demand: each requested problem's kind of match, and the open job that tunes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.operations.answers import Answer, Match
from tilewright.service.operations.best_cache.current_answers import Answers, current_answers
from tilewright.service.operations.demand.demand import DemandAnswer
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.registry import catalogue, row_hash, tuned_for
from tilewright.service.store import models


class AnsweredDemand(Answer):
    """One row of the demand and how it is answered now."""

    demand: DemandAnswer
    match: Match | None = Field(description="Null where there is no answer; `refused` says why.")
    expected_loss: float | None
    refused: str | None
    pending: bool = Field(default=False, description="The answer is being computed.")
    job_id: UUID | None = Field(description="An open job for exactly this.")

    @property
    def problem_hash(self) -> str | None:
        """The problem's hash; None where the kernel no longer admits it."""
        return _hash(self.demand)


def answered(session: Session, rows: Sequence[DemandAnswer], known: Answers | None = None) -> list[AnsweredDemand]:
    """Each row with its present answer, in order: from `known`, and the rest by few queries."""
    singles = [row for row in rows if not row.problem.is_family]
    problems = [(row.problem.single, row.device_model) for row in singles]
    found = iter(current_answers(session, problems, known))
    current = [NO_TABLE if row.problem.is_family else next(found) for row in rows]
    jobs = open_jobs(session, {hashed for row in rows if (hashed := _hash(row)) is not None})
    made = []
    for row, answer in zip(rows, current, strict=True):
        current_answer, refused = (None, answer) if isinstance(answer, str) else (answer, None)
        made.append(
            AnsweredDemand(
                demand=row,
                match=current_answer.match if current_answer else None,
                expected_loss=current_answer.expected_loss if current_answer else None,
                refused=refused,
                pending=current_answer is not None and current_answer.match is None,
                job_id=jobs.get((_hash(row), row.device_model)),
            )
        )
    return made


def open_jobs(session: Session, hashes: Collection[str]) -> dict[tuple[str | None, str], UUID]:
    """Open jobs of these problems, by the problem's hash and the device model's slug."""
    job, problem, model = models.TuningJob, models.Problem, models.DeviceModel
    query = (
        select(problem.hash, model.slug, job.id)
        .join(problem, problem.id == job.problem_id)
        .join(model, model.id == job.device_model_id)
        .where(problem.hash.in_(hashes), job.state.in_(OPEN))
        .order_by(job.id.desc())
    )
    return {(problem_hash, slug): job_id for problem_hash, slug, job_id in session.execute(query)}


NO_TABLE = "it has no table yet; its sizes are answered one by one"


def _hash(row: DemandAnswer) -> str | None:
    """The problem's hash; None where the kernel no longer admits it."""
    kernel = catalogue().by_name.get(row.problem.kernel)
    try:
        asked = row.problem
        return row_hash(tuned_for(kernel, asked.shape, asked.dtype, asked.options)) if kernel else None
    except InvalidProblemError:
        return None
