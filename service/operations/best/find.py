"""find_best(): the best known configuration for a problem on a device model, from stored results only.

Matches are tried in this order: `exact`; `nearest` where arrays have gaps and the same problem without any is tuned;
`predicted` from the trials of tuned shapes with the same dtype and options, and from shipped records; `nearest`, of the
tuned shapes the one at the smallest logarithmic distance; `transferred`, the same on a similar model of the same kind,
or what shipped records of one predict; `default`, the kernel's own. Where all tuned shapes are far, an estimate decides
between the nearest few, then called `estimated`, and the default (`best/far.py`).
A stored configuration is returned only where it is in the requested problem's search space today.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import OptionValue, Problem
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import (
    BestQuery,
    answer_by,
    default_answers,
    predicted_answer,
    stored_answer,
    transferred_answer,
)
from tilewright.service.operations.best.far import COMPARED, choose, is_near
from tilewright.service.operations.best.predictions import predictions
from tilewright.service.operations.best.rows import (
    NOTHING_TUNED,
    TRIED,
    TRIED_FIRST,
    EnvironmentFilter,
    TunedShapes,
    exact_rows,
    rows_by_id,
    similar_shapes,
)
from tilewright.service.operations.best.shipped import shipped_elsewhere, shipped_model, shipped_records, shipped_slugs
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.registry import default_device_model, limits_of
from tilewright.service.store import models
from tilewright.tuner.predict.predictor import enough

T = TypeVar("T")

MAX_SHAPES = 1000
"""The most shapes that one batch may hold."""


def find_best(
    session: Session,
    kernel: str,
    device_model: str | None,
    shape: Mapping[str, int],
    dtype: str = "float32",
    options: Mapping[str, OptionValue] | None = None,
    *,
    driver: str | None = None,
    toolkit: str | None = None,
) -> BestAnswer:
    """The best known configuration for one problem; `device_model` None means the only one with devices.

    Raises NotFoundError for an unknown kernel or device model, InvalidProblemError for anything else in the problem,
    NoConfigurationError where no variant runs on that model.
    """
    declared = kernel_named(kernel)
    problem = declared.problem(shape, dtype, options)
    environment = EnvironmentFilter(driver, toolkit)
    return _find(session, declared, device_model, [problem], environment)[0]


def find_best_batch(
    session: Session,
    kernel: str,
    device_model: str | None,
    shapes: Sequence[Mapping[str, int]],
    dtype: str = "float32",
    options: Mapping[str, OptionValue] | None = None,
    *,
    driver: str | None = None,
    toolkit: str | None = None,
    known: Callable[[Problem], BestAnswer | T | None] | None = None,
) -> list[BestAnswer | T]:
    """One answer per shape, in order, with a handful of queries in all; raises like `find_best`, naming the shape.

    `known`: gives the answers that need no query; they equal those from the database.
    """
    declared = kernel_named(kernel)
    if not 1 <= len(shapes) <= MAX_SHAPES:
        raise InvalidRequestError("shapes", f"must hold 1 to {MAX_SHAPES} shapes.")
    problems = []
    for place, shape in enumerate(shapes):
        try:
            problems.append(declared.problem(shape, dtype, options))
        except InvalidProblemError as error:
            if not error.field.startswith("shape"):
                raise
            field = error.field.replace("shape", f"shapes.{place}", 1)
            raise InvalidProblemError(field, error.reason, error.example) from error
    answers = [None if known is None else known(problem) for problem in problems]
    missing = [problem for problem, answer in zip(problems, answers, strict=True) if answer is None]
    environment = EnvironmentFilter(driver, toolkit)
    looked_up = iter(_find(session, declared, device_model, missing, environment) if missing else [])
    return [next(looked_up) if answer is None else answer for answer in answers]


def _find(
    session: Session,
    kernel: Kernel,
    device_model: str | None,
    problems: Sequence[Problem],
    environment: EnvironmentFilter,
) -> list[BestAnswer]:
    slug = device_model if device_model is not None else default_device_model(session)
    answers: dict[str, BestAnswer] = {}
    for problem, row, model in exact_rows(session, kernel, slug, problems, environment):
        answer = stored_answer(BestQuery(kernel, problem, slug, limits_of(model)), row, Match.EXACT)
        if answer is not None:
            answers[problem.hash] = answer
    missing = list({p.hash: p for p in problems if p.hash not in answers}.values())
    answers |= _of_dense(session, kernel, slug, missing, environment)
    by_axes: dict[tuple[object, ...], list[Problem]] = {}
    for problem in missing:
        if problem.hash not in answers:
            by_axes.setdefault((*(axis for axis, _ in problem.sizes), *problem.rules), []).append(problem)
    for alike in by_axes.values():
        answers |= _without_exact(session, kernel, slug, alike, environment)
    return [answers[problem.hash] for problem in problems]


def _of_dense(
    session: Session, kernel: Kernel, slug: str, problems: Sequence[Problem], environment: EnvironmentFilter
) -> dict[str, BestAnswer]:
    """For arrays with gaps, by problem hash: the best of the same problem without any, where it fits."""
    with_gaps = [problem for problem in problems if problem.dense != problem]
    by_dense = {problem.dense: problem for problem in with_gaps}
    answers: dict[str, BestAnswer] = {}
    for dense, row, model in exact_rows(session, kernel, slug, list(by_dense), environment) if by_dense else ():
        for problem in (p for p in with_gaps if p.dense == dense):
            answer = stored_answer(BestQuery(kernel, problem, slug, limits_of(model)), row, Match.NEAREST)
            answers |= {} if answer is None else {problem.hash: answer}
    return answers


def _model(session: Session, slug: str) -> models.DeviceModel:
    row = session.scalars(select(models.DeviceModel).where(models.DeviceModel.slug == slug)).one_or_none()
    row = row or shipped_model(slug)
    if row is None:
        known = session.scalars(select(models.DeviceModel.slug).order_by(models.DeviceModel.slug).limit(50)).all()
        raise NotFoundError("device model", slug, sorted({*known, *shipped_slugs()}))
    return row


def _without_exact(
    session: Session, kernel: Kernel, slug: str, problems: Sequence[Problem], environment: EnvironmentFilter
) -> dict[str, BestAnswer]:
    """Predicted, nearest, transferred or default answers, by problem hash."""
    model = _model(session, slug)
    asked = {p.hash: BestQuery(kernel, p, slug, limits_of(model)) for p in problems}
    tuned = similar_shapes(session, kernel, problems[0], model, environment, transferred=False)
    answers = _predicted(session, model, tuned, list(asked.values()), environment)
    for match in (Match.NEAREST, Match.TRANSFERRED):
        unanswered = [asked[p.hash] for p in problems if p.hash not in answers]
        if not unanswered:
            break
        if match is Match.TRANSFERRED:
            tuned = similar_shapes(session, kernel, problems[0], model, environment, transferred=True)
        answers |= _by_distance(session, match, tuned, unanswered)
    unanswered = [asked[p.hash] for p in problems if p.hash not in answers]
    answers |= _from_shipped(session, model, unanswered, environment)
    return answers | default_answers([asked[p.hash] for p in problems if p.hash not in answers])


def _predicted(
    session: Session,
    model: models.DeviceModel,
    tuned: TunedShapes,
    asked: Sequence[BestQuery],
    environment: EnvironmentFilter,
) -> dict[str, BestAnswer]:
    """Answers for the problems that allow a prediction, by problem hash.

    For batches, where enough are tuned, or records of them were shipped or of what they are akin to.
    """
    kernel, admits = asked[0].kernel, {query.problem: query.is_member for query in asked}
    is_batch = asked[0].problem.sizes != asked[0].problem.axes
    count = tuned.batches if is_batch else len(tuned.ids)
    shipped = shipped_records(kernel, model.slug, asked[0].limits, count, asked[0].problem, environment)
    if is_batch and not shipped and not enough(count):
        return {}
    predicted = predictions(session, kernel, asked[0].limits, model.id, tuned, admits, shipped=shipped)
    return {q.problem.hash: predicted_answer(q, predicted[q.problem]) for q in asked if q.problem in predicted}


def _from_shipped(
    session: Session, model: models.DeviceModel, asked: Sequence[BestQuery], environment: EnvironmentFilter
) -> dict[str, BestAnswer]:
    """Answers from shipped records of another device model, by problem hash, where there are any."""
    series = shipped_elsewhere(asked[0].kernel, model, asked[0].problem, environment) if asked else None
    if series is None:
        return {}
    admits = {query.problem: query.is_member for query in asked}
    predicted = predictions(
        session, asked[0].kernel, series.limits, model.id, NOTHING_TUNED, admits, shipped=series.records
    )
    return {
        q.problem.hash: transferred_answer(q, predicted[q.problem], series.device_model)
        for q in asked
        if q.problem in predicted
    }


def _by_distance(
    session: Session, match: Match, tuned: TunedShapes, asked: Sequence[BestQuery]
) -> dict[str, BestAnswer]:
    """For each problem the answer from the nearest tuned one whose configuration fits it, where there is one."""
    places = {query.problem.hash: tuned.nearest(query.problem, TRIED) for query in asked}
    fitting: dict[str, list[StoredBest]] = {query.problem.hash: [] for query in asked}
    answers: dict[str, BestAnswer] = {}
    for tried in (slice(TRIED_FIRST), slice(TRIED_FIRST, None)):
        open_ones = [o for o in asked if o.problem.hash not in answers and len(fitting[o.problem.hash]) < COMPARED]
        rows = rows_by_id(session, {i for query in open_ones for i in places[query.problem.hash][tried]})
        for query in open_ones:
            fit = fitting[query.problem.hash]
            current = (rows[row_id] for row_id in places[query.problem.hash][tried] if row_id in rows)
            fit += islice((row for row in current if query.is_member(row.configuration)), COMPARED - len(fit))
            sizes = query.problem.sizes
            if fit and is_near([size for _, size in sizes], [fit[0].shape.get(axis, 1) for axis, _ in sizes]):
                answers[query.problem.hash] = answer_by(query, fit[0], match)
    for query in asked:
        if fitting[query.problem.hash] and query.problem.hash not in answers:
            answers |= _from_afar(query, fitting[query.problem.hash])
    return answers


def _from_afar(asked: BestQuery, rows: Sequence[StoredBest]) -> dict[str, BestAnswer]:
    chosen = choose(asked, rows)
    if chosen is None:
        return default_answers([asked])
    return {asked.problem.hash: answer_by(asked, chosen, Match.ESTIMATED)}
