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
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import (
    BestQuery,
    answer_by,
    default_answers,
    predicted_answer,
    stored_answer,
)
from tilewright.service.operations.best.far import COMPARED, choose, is_near
from tilewright.service.operations.best.rows import TRIED, TRIED_FIRST, EnvironmentFilter, TunedShapes
from tilewright.service.operations.best.source import BestRows, DatabaseRows
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.registry import default_device_model

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
    return find_in(_rows(session, declared, device_model, environment), [problem])[0]


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
    looked_up = iter(find_in(_rows(session, declared, device_model, environment), missing) if missing else [])
    return [next(looked_up) if answer is None else answer for answer in answers]


def _rows(session: Session, kernel: Kernel, device_model: str | None, environment: EnvironmentFilter) -> DatabaseRows:
    slug = device_model if device_model is not None else default_device_model(session)
    return DatabaseRows(session, kernel, slug, environment)


def find_in(rows: BestRows, problems: Sequence[Problem]) -> list[BestAnswer]:
    """The answer for each problem, all of the rows' kernel, from the database's rows or those in memory."""
    answers: dict[str, BestAnswer] = {}
    for problem, row, limits in rows.exact(problems):
        answer = stored_answer(rows.query(problem, limits), row, Match.EXACT)
        if answer is not None:
            answers[problem.hash] = answer
    missing = list({p.hash: p for p in problems if p.hash not in answers}.values())
    answers |= _of_dense(rows, missing)
    by_axes: dict[tuple[object, ...], list[Problem]] = {}
    for problem in missing:
        if problem.hash not in answers:
            by_axes.setdefault((*(axis for axis, _ in problem.sizes), *problem.rules), []).append(problem)
    for alike in by_axes.values():
        answers |= _without_exact(rows, alike)
    return [answers[problem.hash] for problem in problems]


def _of_dense(rows: BestRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """For arrays with gaps, by problem hash: the best of the same problem without any, where it fits."""
    with_gaps = [problem for problem in problems if problem.dense != problem]
    by_dense = {problem.dense: problem for problem in with_gaps}
    answers: dict[str, BestAnswer] = {}
    for dense, row, limits in rows.exact(list(by_dense)) if by_dense else ():
        for problem in (p for p in with_gaps if p.dense == dense):
            answer = stored_answer(_unverified(rows, problem, limits), row, Match.NEAREST)
            answers |= {} if answer is None else {problem.hash: answer}
    return answers


def _without_exact(rows: BestRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """Predicted, nearest, transferred or default answers, by problem hash."""
    limits = rows.limits
    asked = {problem.hash: _unverified(rows, problem, limits) for problem in problems}
    tuned = rows.tuned(problems[0], transferred=False)
    predicted = rows.predicted(tuned, list(asked.values()))
    answers = {p.hash: predicted_answer(asked[p.hash], predicted[p]) for p in problems if p in predicted}

    def unanswered() -> list[BestQuery]:
        return [query for hashed, query in asked.items() if hashed not in answers]

    for match in (Match.NEAREST, Match.TRANSFERRED):
        if not unanswered():
            break
        if match is Match.TRANSFERRED:
            tuned = rows.tuned(problems[0], transferred=True)
        answers |= _by_distance(rows, match, tuned, unanswered())
    if unanswered():
        answers |= rows.from_other_models(unanswered())
    return answers | default_answers(unanswered())


def _unverified(rows: BestRows, problem: Problem, limits: Limits) -> BestQuery:
    """The question for a problem whose answer was not verified for it, without what was found wrong there."""
    query = rows.query(problem, limits)
    return replace(query, wrong=rows.wrong.get(problem.hash, ())) if rows.wrong else query


def _by_distance(
    source: BestRows, match: Match, tuned: TunedShapes, asked: Sequence[BestQuery]
) -> dict[str, BestAnswer]:
    """For each problem the answer from the nearest tuned one whose configuration fits it, where there is one."""
    places = {query.problem.hash: tuned.nearest(query.problem, TRIED) for query in asked}
    fitting: dict[str, list[StoredBest]] = {query.problem.hash: [] for query in asked}
    answers: dict[str, BestAnswer] = {}
    for tried in (slice(TRIED_FIRST), slice(TRIED_FIRST, None)):
        open_ones = [o for o in asked if o.problem.hash not in answers and len(fitting[o.problem.hash]) < COMPARED]
        rows = source.by_id({i for query in open_ones for i in places[query.problem.hash][tried]})
        for query in open_ones:
            fit = fitting[query.problem.hash]
            current = (rows[row_id] for row_id in places[query.problem.hash][tried] if row_id in rows)
            fit += islice((row for row in current if query.is_member(row.configuration)), COMPARED - len(fit))
            sizes = query.problem.sizes
            if fit and is_near([size for _, size in sizes], [fit[0].shape.get(axis, 1) for axis, _ in sizes]):
                answers[query.problem.hash] = answer_by(query, fit[0], match)
    for query in asked:
        if fitting[query.problem.hash] and query.problem.hash not in answers:
            answers |= _from_afar(source, query, fitting[query.problem.hash])
    return answers


def _from_afar(source: BestRows, asked: BestQuery, rows: Sequence[StoredBest]) -> dict[str, BestAnswer]:
    chosen = choose(asked, rows, source.tiles(asked.problem))
    if chosen is None:
        return default_answers([asked])
    return {asked.problem.hash: answer_by(asked, chosen, Match.ESTIMATED)}
