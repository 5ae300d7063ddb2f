"""The cells of the first pages that show no result: what `best` answers there is kept ready for whoever looks."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.operations.views.matrix import MOST_COLUMNS
from tilewright.service.store import models

MOST_PROBLEMS = 300
"""Problems of each kernel, those tuned last; a page has 200."""


def open_cells(session: Session) -> Iterator[tuple[ProblemAnswer, str]]:
    """Problems and device models of a page's cells without a result, kernel by kernel, the one tuned last first."""
    best, problem, model = models.BestConfiguration, models.Problem, models.DeviceModel
    newest = func.max(best.id)
    slugs = func.array_agg(aggregate_order_by(model.slug.distinct(), model.slug))
    kernels = (
        select(models.Kernel.id, models.Kernel.name)
        .join(problem, problem.kernel_id == models.Kernel.id)
        .join(best, best.problem_id == problem.id)
        .where(is_current())
        .group_by(models.Kernel.id)
        .order_by(newest.desc())
    )
    for kernel_id, kernel in session.execute(kernels).all():
        rows = session.execute(
            select(problem.shape, problem.dtype, problem.options, slugs)
            .join(best, best.problem_id == problem.id)
            .join(model, model.id == best.device_model_id)
            .where(problem.kernel_id == kernel_id, is_current())
            .group_by(problem.id)
            .order_by(newest.desc())
            .limit(MOST_PROBLEMS)
        ).all()
        counts: dict[str, int] = {}
        for *_, tuned in rows:
            for slug in tuned:
                counts[slug] = counts.get(slug, 0) + 1
        columns = sorted(counts, key=lambda slug: (-counts[slug], slug))[:MOST_COLUMNS]
        for shape, dtype, options, tuned in rows:
            answer = ProblemAnswer(kernel=kernel, shape=shape, dtype=dtype, options=options)
            yield from ((answer, slug) for slug in columns if slug not in tuned)
