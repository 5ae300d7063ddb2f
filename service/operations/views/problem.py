"""All that is known of one problem: how each device model answers it, its bests, studies, jobs and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import and_, select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.errors import NotFoundError
from tilewright.service.operations import registry
from tilewright.service.operations.answers import JobAnswer, ProblemAnswer, StudyAnswer
from tilewright.service.operations.best.history import HistoryEntry, history
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import DemandAnswer
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.parse import parse_options, parse_shape
from tilewright.service.operations.registry import problem_answer
from tilewright.service.operations.shape_filter import shape_of
from tilewright.service.operations.studies import studies
from tilewright.service.operations.studies.studies import JobStep
from tilewright.service.operations.views.matrix import MOST_COLUMNS
from tilewright.service.operations.views.matrix_rows import CellAnswer, problem_cells
from tilewright.service.operations.views.notes import NoteAnswer, notes
from tilewright.service.store import models

MOST_JOBS, MOST_STUDIES = 10, 20


@dataclass(frozen=True)
class NamedProblem:
    """The problem that an address names."""

    kernel: str
    shape: str
    dtype: str
    options: str | None


@dataclass(frozen=True)
class KnownProblem:
    """One problem; `cells`: of device models that have studied it, then those with a running worker, then others."""

    problem: ProblemAnswer
    cells: Sequence[CellAnswer]
    history: Sequence[HistoryEntry]
    studies: Sequence[StudyAnswer]
    jobs: Sequence[JobAnswer]
    demand: Mapping[str, DemandAnswer]
    served: frozenset[str]
    steps: Mapping[UUID, Sequence[JobStep]]
    notes: Sequence[NoteAnswer]


def known_problem(session: Session, named: NamedProblem, memory: BestMemory | None) -> KnownProblem:
    """Everything stored about the problem, also where nobody has tuned it.

    Raises InvalidProblemError, InvalidRequestError or NotFoundError for one that cannot be.
    """
    problem, problem_hash, row_id = _found(session, named)
    own_studies = [] if row_id is None else studies.of_problem(session, row_id, MOST_STUDIES)
    served = frozenset(device.model for device in registry.devices(session) if device.alive)
    all_models = sorted(registry.device_models(session), key=lambda model: (model.kind == "cpu", model.slug))
    shown = [*sorted({study.device_model for study in own_studies}), *sorted(served), *(m.slug for m in all_models)]
    own_jobs = [] if row_id is None else jobs.of_problem(session, row_id, MOST_JOBS)
    winners = history(session, problem_hash).items
    return KnownProblem(
        problem=problem,
        cells=problem_cells(session, problem, row_id, list(dict.fromkeys(shown))[:MOST_COLUMNS], memory),
        history=winners,
        studies=own_studies,
        jobs=own_jobs,
        demand={row.device_model: row for row in demand.of_problem(session, problem_hash)},
        served=served,
        steps=studies.job_steps(session, [job.id for job in own_jobs]),
        notes=notes(session, sorted({study.id for study in own_studies} | {entry.study_id for entry in winners})),
    )


def _found(session: Session, named: NamedProblem) -> tuple[ProblemAnswer, str, int | None]:
    """The problem, its hash, and the id of its row, if stored; a stored one may no longer be admitted."""
    row, refusal = models.Problem, None
    try:
        kernel = kernel_named(named.kernel)
        problem = kernel.problem(shape_of(named.shape, kernel.axes), named.dtype, parse_options(named.options))
    except (InvalidProblemError, NotFoundError) as error:
        refusal = error
        is_meant = and_(
            row.kernel.has(models.Kernel.name == named.kernel),
            row.shape == parse_shape(named.shape),
            row.dtype == named.dtype,
            row.options == parse_options(named.options),
        )
    else:
        is_meant = row.hash == problem.hash
    stored = session.scalars(select(row).where(is_meant).options(joinedload(row.kernel))).first()
    if stored is not None:
        return problem_answer(stored), stored.hash, stored.id
    if refusal is not None:
        raise refusal
    answer = ProblemAnswer(
        kernel=problem.kernel, shape=problem.stated_shape, dtype=problem.dtype, options=dict(problem.options)
    )
    return answer, problem.hash, None
