"""Collects what a new study can learn from earlier studies before its own trials.

Trials of the nearest two make priors; what `best` would predict is tried first, then what was best for more of them. A
model's guess is as good as the trials that two shapes share: winners tried elsewhere too are what predictions for a
third shape rest on.
A configuration retracted there, or wrong in the finals, counts as failed: its time is that of a wrong result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Double, func, select, true
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.predictions import Series, predictions
from tilewright.service.operations.best.rows import MAX_RANKED, EnvironmentFilter, alike, model_distance, similar_shapes
from tilewright.service.operations.best.shipped import ANY, shipped_elsewhere, shipped_records
from tilewright.service.operations.registry import limits_of
from tilewright.service.operations.studies.rows import barred, prior_trials
from tilewright.service.operations.transaction import Reading
from tilewright.service.store import models
from tilewright.tuner.predict.shipped import MOST_GUESSED_FROM, nearest_of
from tilewright.tuner.search.searcher import Prior

OLDER_ENVIRONMENT = 0.95
"""Similarity: the same problem on the same device model, under another driver or compiler."""

NEAR_SHAPE, HALVED_EVERY = 0.9, 4.0
"""Similarity of another shape: this, halved for so many powers of two that its axes differ by in all."""

OTHER_MODEL = 0.8
"""Similarity of another device model, at the same shape: that of the replays in docs/measuring/search.md."""

FARTHEST = 4.0
"""Powers of two; beyond that another shape says too little."""

MOST_READ = 5 * MAX_RANKED
"""Studies, the newest of whatever kernel; half a second's work of the database."""

MOST_OF_EACH = 2
FEWEST_TRIALS = 8

MOST_WINNERS = 64
"""How many winners of the nearest shapes a prior has; a search tries a few of them."""


def priors(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Prior]:
    """At most four priors for the study, the most similar first.

    From its own device model: the same problem in older environments, near shapes in the same one. Where there is
    neither, the same problem or near shapes on the most similar other models of its kind.
    """
    own = [*_older(session, kernel, study), *_near(session, kernel, problem, study)]
    return sorted(own or _elsewhere(session, kernel, problem, study), key=lambda prior: -prior.similarity)


def winners(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Configuration]:
    """The best configurations of this problem and the nearest others on the study's device model, the nearest first.

    Of every environment: a start is measured like any other trial.
    """
    best = models.BestConfiguration
    model = session.get_one(models.DeviceModel, study.device_model_id)
    tuned = similar_shapes(session, kernel, problem, model, EnvironmentFilter(), transferred=False)
    ids = tuned.nearest(problem, MOST_WINNERS)
    rows = session.execute(select(best.id, models.Trial.configuration).join(best.trial).where(best.id.in_(ids)))
    configurations = {row.id: Configuration.from_json(row.configuration) for row in rows}
    return list(dict.fromkeys(configurations[row_id] for row_id in ids))


def guess(
    reading: Reading, kernel: Kernel, problem: Problem, device: str, variants: Sequence[str] | None
) -> Configuration | None:
    """The configuration of these variants that is predicted, as by `best`, to be fastest on the device of this UUID.

    From the nearest shapes, and from shipped ones: of the GPU most like this one where none are of it, since what a
    search tries first is measured. None where there are too few.
    """
    there = models.DeviceModel
    with reading() as session:
        model = session.scalars(select(there).join(models.Device).where(models.Device.uuid == device)).one()
        tuned = similar_shapes(session, kernel, problem, model, EnvironmentFilter(), transferred=False)
    near = replace(tuned, ids=tuned.ids[np.isin(tuned.ids, tuned.nearest(problem, MOST_GUESSED_FROM))])
    limits = limits_of(model)
    space = kernel.space(problem, limits, variants)
    shipped = shipped_records(kernel, model.slug, limits, len(tuned.ids), problem)
    elsewhere = None if shipped else shipped_elsewhere(kernel, model, problem, ANY)
    shipped = shipped if elsewhere is None else elsewhere.records
    helpers = nearest_of(kernel, problem, shipped)
    series = Series(kernel, limits, model.id, problem)
    asked = {problem: space.__contains__}
    # Of shapes that are near this one alone: nobody will ask for the same fit.
    predicted = predictions(reading, series, near, asked, shipped=helpers, is_stored=False)[problem]
    return None if predicted is None else predicted.configuration


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
    there = models.Study
    near = _within_reach(
        session,
        kernel,
        problem,
        there.problem_id != study.problem_id,
        there.device_model_id == study.device_model_id,
        there.environment_id == study.environment_id,
    )
    nearest = sorted((candidate.distance, candidate.study_id) for candidate in near)[:MOST_OF_EACH]
    return _made(session, kernel, [("near shape", number, NEAR_SHAPE * _share(far)) for far, number in nearest])


def _elsewhere(session: Session, kernel: Kernel, problem: Problem, study: models.Study) -> list[Prior]:
    there, own = models.DeviceModel, session.get_one(models.DeviceModel, study.device_model_id)
    others = session.execute(
        select(there.id, there.name, there.multiprocessors, there.compute_capability).where(
            there.kind == own.kind, there.id != own.id
        )
    ).all()
    names = {row.id: row.name for row in others}
    unlike = {row.id: model_distance(own, row.multiprocessors, row.compute_capability) for row in others}
    newest: dict[tuple[int, int], tuple[float, int, _Near]] = {}
    for near in _within_reach(session, kernel, problem, models.Study.device_model_id.in_(names)):
        newest.setdefault(
            (near.model_id, near.problem_id), (near.distance + unlike[near.model_id], near.study_id, near)
        )
    nearest = [near for _, _, near in sorted(newest.values(), key=lambda ranked: ranked[:2])[:MOST_OF_EACH]]
    sources = [(names[near.model_id], near.study_id, OTHER_MODEL * _share(near.distance)) for near in nearest]
    return _made(session, kernel, sources)


class _Near(NamedTuple):
    """A study of a problem that differs little: by so many powers of two in all."""

    study_id: int
    problem_id: int
    model_id: int
    distance: float


def _within_reach(
    session: Session, kernel: Kernel, problem: Problem, *conditions: ColumnElement[bool]
) -> Iterator[_Near]:
    """Studies whose problem is this one or differs little from it, the newest first."""
    there, shape = models.Study, models.Problem.shape
    recent = (
        select(there.id, there.problem_id, there.device_model_id)
        .where(*conditions)
        .order_by(there.id.desc())
        .limit(MOST_READ)
        .subquery()
    )
    # Study by study: PostgreSQL expects that hardly a problem is alike, and would begin with those of a million.
    alike_shape = (
        select(shape)
        .join(models.Kernel)
        .where(models.Problem.id == recent.c.problem_id, *alike(kernel, problem))
        .where(shape.has_all(array([axis for axis, _ in problem.axes])))
        .limit(1)
        .lateral()
    )
    newest = (
        select(recent, alike_shape.c.shape)
        .join(alike_shape, true())
        .order_by(recent.c.id.desc())
        .limit(MAX_RANKED)
        .subquery()
    )
    # `distance`, by the database: to read twenty thousand shapes as JSON takes the worker over a second.
    ratios = (
        func.coalesce(newest.c.shape[axis].astext, "1").cast(Double) / float(size) for axis, size in problem.sizes
    )
    far = reduce(add, (func.abs(func.ln(ratio)) for ratio in ratios)) / math.log(2)
    query = select(newest.c.id, newest.c.problem_id, newest.c.device_model_id, far).where(far < FARTHEST + 1e-6)
    return map(_Near._make, session.execute(query.order_by(newest.c.id.desc())))


def _share(far: float) -> float:
    return math.exp2(-far / HALVED_EVERY)


def _made(session: Session, kernel: Kernel, sources: list[tuple[str, int, float]]) -> list[Prior]:
    made = []
    for source, study_id, similarity in sources:
        trials, out = prior_trials(session, study_id, kernel), barred(session, study_id)
        evaluated = [(trial.configuration, trial.evaluation) for trial in trials]
        if sum(evaluation.time_ms is not None and c not in out for c, evaluation in evaluated) >= FEWEST_TRIALS:
            made.append(Prior.of(f"{source}, study {study_id}", evaluated, similarity, out))
    return made
