"""What the database holds that a new study may learn from before its own trials: older environments, near shapes.

Trials of the nearest two make priors; what was best for more of them is tried first. A model's guess is as good as the
trials that two shapes share: winners tried elsewhere too are what predictions for a third shape rest on.
What was retracted there, or fell in the finals, counts as failed: its time is that of a wrong result.
Not other device models: replayed, such a prior helped one search a lot and held another back for a hundred trials
(docs/measuring.md, section 7), and nothing tells them apart beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best_rows import EnvironmentFilter, alike, similar_shapes
from tilewright.service.operations.study_rows import barred, prior_trials
from tilewright.service.store import models
from tilewright.tuner.search import Prior

OLDER_ENVIRONMENT = 0.95
"""Similarity: the same problem on the same device model, under another driver or compiler."""

NEAR_SHAPE, HALVED_EVERY = 0.9, 4.0
"""Similarity of another shape: this, halved for so many powers of two that its axes differ by in all."""

FARTHEST = 4.0
"""Powers of two; beyond that another shape says too little."""

MOST_OF_EACH = 2
FEWEST_TRIALS = 8

MOST_WINNERS = 64
"""Of the nearest shapes; a search tries a few of them, after those that its study has or its space has not."""

Shape = Mapping[str, int]


def priors(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Prior]:
    """At most four priors for the study, the most similar first."""
    found = [*_older(session, kernel, study), *_near(session, kernel, problem, study)]
    return sorted(found, key=lambda prior: -prior.similarity)


def winners(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Configuration]:
    """What is best on the study's device model for this problem and the nearest others, the nearest first.

    Of every environment: a start is measured like any other trial.
    """
    best = models.BestConfiguration
    model = session.get_one(models.DeviceModel, study.device_model_id)
    tuned = similar_shapes(session, kernel, problem, model, EnvironmentFilter(), transferred=False)
    ids = tuned.nearest(problem, MOST_WINNERS)
    rows = session.execute(select(best.id, models.Trial.configuration).join(best.trial).where(best.id.in_(ids)))
    found = {row.id: Configuration.from_json(row.configuration) for row in rows}
    return list(dict.fromkeys(found[number] for number in ids))


def distance(one: Shape, other: Shape) -> float:
    """How many powers of two the axes differ by, added up: 1 x n is as far from n x 1 as it looks."""
    return sum(abs(math.log2(size / other[axis])) for axis, size in one.items())


def _older(session: Session, kernel: Kernel, study: models.Study) -> list[Prior]:
    rows = session.scalars(
        select(models.Study.id)
        .where(
            models.Study.problem_id == study.problem_id,
            models.Study.device_model_id == study.device_model_id,
            models.Study.id != study.id,
        )
        .order_by(models.Study.id.desc())
        .limit(MOST_OF_EACH)
    ).all()
    return _made(session, kernel, [("older environment", row, OLDER_ENVIRONMENT) for row in rows])


def _near(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Prior]:
    wanted = (
        select(models.Study.id, models.Problem.shape)
        .join(models.Problem, models.Problem.id == models.Study.problem_id)
        .join(models.Kernel, models.Kernel.id == models.Problem.kernel_id)
        .where(
            *alike(kernel, problem),
            models.Problem.id != study.problem_id,
            models.Study.device_model_id == study.device_model_id,
            models.Study.environment_id == study.environment_id,
        )
    )
    same_axes = (row for row in session.execute(wanted) if row.shape.keys() == problem.shape.keys())
    far = [(distance(problem.shape, row.shape), row.id) for row in same_axes]
    nearest = sorted(pair for pair in far if pair[0] <= FARTHEST)[:MOST_OF_EACH]
    return _made(
        session, kernel, [("near shape", study_id, NEAR_SHAPE * 2 ** (-d / HALVED_EVERY)) for d, study_id in nearest]
    )


def _made(session: Session, kernel: Kernel, wanted: list[tuple[str, int, float]]) -> list[Prior]:
    made = []
    for source, study_id, similarity in wanted:
        trials, out = prior_trials(session, study_id, kernel).trials, barred(session, study_id)
        told = [(trial.configuration, trial.evaluation) for trial in trials]
        if sum(evaluation.time_ms is not None and c not in out for c, evaluation in told) >= FEWEST_TRIALS:
            made.append(Prior.of(f"{source}, study {study_id}", told, similarity, out))
    return made
