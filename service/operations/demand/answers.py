"""Today's answers for the demand: each requested problem's kind of match, and the open job that tunes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import NoConfigurationError, NotFoundError
from tilewright.service.operations.answers import Answer, Match
from tilewright.service.operations.best.find import find_best_batch
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.demand.demand import DemandAnswer
from tilewright.service.operations.jobs.jobs import OPEN
from tilewright.service.operations.registry import catalogue
from tilewright.service.store import models

Group = tuple[str, str, str, str]


@dataclass(frozen=True)
class CurrentAnswer:
    """How a problem is answered, and how much slower than tuned that is expected to be."""

    match: Match
    expected_loss: float | None


class AnsweredDemand(Answer):
    """One row of the demand and how it is answered now."""

    demand: DemandAnswer
    match: Match | None = Field(description="Null where there is no answer; `refused` says why.")
    expected_loss: float | None
    refused: str | None
    job_id: UUID | None = Field(description="An open job for exactly this.")


def answered(session: Session, rows: Sequence[DemandAnswer], memory: BestMemory | None = None) -> list[AnsweredDemand]:
    """Each row with its answer of today, in their order; from `memory` what that holds, the rest by few queries."""
    current: dict[int, CurrentAnswer | str] = {}
    groups: dict[Group, list[int]] = {}
    for place, row in enumerate(rows):
        problem = row.problem
        asked = (problem.kernel, row.device_model, problem.shape, problem.dtype, problem.options)
        kept = memory.find(*asked) if memory is not None else None
        if kept is not None:
            current[place] = CurrentAnswer(kept.match, kept.expected_loss)
        else:
            options = str(sorted(problem.options.items()))
            groups.setdefault((problem.kernel, row.device_model, problem.dtype, options), []).append(place)
    for places in groups.values():
        current |= _looked_up(session, rows, places)
    jobs = _open_jobs(session, rows)
    made = []
    for place, row in enumerate(rows):
        answer = current[place]
        known, refused = (None, answer) if isinstance(answer, str) else (answer, None)
        made.append(
            AnsweredDemand(
                demand=row,
                match=known.match if known else None,
                expected_loss=known.expected_loss if known else None,
                refused=refused,
                job_id=jobs.get((_hash(row), row.device_model)),
            )
        )
    return made


def _looked_up(session: Session, rows: Sequence[DemandAnswer], places: Sequence[int]) -> dict[int, CurrentAnswer | str]:
    """The answers for the rows at those places, which differ only in shape, or the reason why there are none."""
    first = rows[places[0]]
    problem = first.problem
    shapes = [rows[place].problem.shape for place in places]
    try:
        best = find_best_batch(session, problem.kernel, first.device_model, shapes, problem.dtype, problem.options)
    except (InvalidProblemError, NoConfigurationError, NotFoundError) as error:
        return dict.fromkeys(places, str(error))
    return {
        place: CurrentAnswer(answer.match, answer.expected_loss) for place, answer in zip(places, best, strict=True)
    }


def _open_jobs(session: Session, rows: Sequence[DemandAnswer]) -> dict[tuple[str | None, str], UUID]:
    """Open jobs by the hash of their problem and their device model's slug."""
    hashes = {problem_hash for row in rows if (problem_hash := _hash(row)) is not None}
    job, problem, model = models.TuningJob, models.Problem, models.DeviceModel
    query = (
        select(problem.hash, model.slug, job.id)
        .join(problem, problem.id == job.problem_id)
        .join(model, model.id == job.device_model_id)
        .where(problem.hash.in_(hashes), job.state.in_(OPEN))
        .order_by(job.id.desc())
    )
    return {(problem_hash, slug): job_id for problem_hash, slug, job_id in session.execute(query)}


def _hash(row: DemandAnswer) -> str | None:
    """The problem's hash; None where the kernel no longer admits it."""
    kernel = catalogue().by_name.get(row.problem.kernel)
    try:
        return kernel.problem(row.problem.shape, row.problem.dtype, row.problem.options).hash if kernel else None
    except InvalidProblemError:
        return None
