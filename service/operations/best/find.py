"""find_best(): the best known configuration for a problem on a device model, from stored results only.

Matches are tried in this order: `exact`; `range`, from a table of the problem's family; `nearest` where arrays have
gaps and the same problem without any is tuned; `predicted` from the trials of tuned shapes with the same dtype and
options, and from shipped records; `nearest`, of the tuned shapes the one at the smallest logarithmic distance;
`transferred`, the same on a similar model of the same kind, or what shipped records of one predict; `default`, the
kernel's own. Where all tuned shapes are far, an estimate decides between the nearest few, then called `estimated`, and
the default (`best/far.py`).
A stored configuration is returned only where it is in the requested problem's search space today.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tilewright.kernels.errors import InvalidProblemError
from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, OptionValue, Problem
from tilewright.service.operations.answers import BestAnswer, Match
from tilewright.service.operations.best.answer import (
    BestQuery,
    answer_by,
    first_usable,
    predicted_answer,
    range_answer,
)
from tilewright.service.operations.best.far import COMPARED, choose, is_near
from tilewright.service.operations.best.rows import TRIED, TRIED_FIRST, EnvironmentFilter, TunedShapes
from tilewright.service.operations.best.source import DatabaseRows, Effort
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.registry import default_device_model
from tilewright.service.operations.transaction import Reading, transaction

MAX_SHAPES = 1000
"""The most shapes that one batch may hold."""


@dataclass(frozen=True)
class Asked:
    """Problems of one kernel, dtype and options that are looked up on one device model, in these environments."""

    kernel: Kernel
    device_model: str
    problems: tuple[Problem, ...]
    environment: EnvironmentFilter

    @classmethod
    def of(
        cls,
        kernel: str,
        device_model: str | None,
        shapes: Sequence[Mapping[str, int]],
        dtype: str = "float32",
        options: Mapping[str, OptionValue] | None = None,
        *,
        driver: str | None = None,
        toolkit: str | None = None,
        reading: Reading = transaction,
    ) -> Asked:
        """These shapes; `device_model` None means the only one with devices.

        Raises NotFoundError for an unknown kernel or device model, InvalidProblemError for anything else in a problem:
        it names the place of a shape among several.
        """
        declared = kernel_named(kernel)
        problems = tuple(_problems(declared, shapes, dtype, options))
        if device_model is None:
            with reading() as session:
                device_model = default_device_model(session)
        return cls(declared, device_model, problems, EnvironmentFilter(driver, toolkit))

    def rows(
        self, reading: Reading = transaction, effort: Effort = Effort.ALL, until: float | None = None
    ) -> DatabaseRows:
        """The database's rows that answer it."""
        return DatabaseRows(self.kernel, self.device_model, self.environment, reading, effort, until)


def _problems(
    kernel: Kernel, shapes: Sequence[Mapping[str, int]], dtype: str, options: Mapping[str, OptionValue] | None
) -> Iterator[Problem]:
    for place, shape in enumerate(shapes):
        try:
            yield kernel.problem(shape, dtype, options)
        except InvalidProblemError as error:
            if len(shapes) == 1 or not error.field.startswith("shape"):
                raise
            field = error.field.replace("shape", f"shapes.{place}", 1)
            raise InvalidProblemError(field, error.reason, error.example) from error


def find_best(
    kernel: str,
    device_model: str | None,
    shape: Mapping[str, int],
    dtype: str = "float32",
    options: Mapping[str, OptionValue] | None = None,
    *,
    driver: str | None = None,
    toolkit: str | None = None,
    reading: Reading = transaction,
) -> BestAnswer:
    """The best known configuration for one problem, predicted by this process where it must be.

    Raises like `Asked.of`, and NoConfigurationError where no variant runs on that model.
    """
    more = {"driver": driver, "toolkit": toolkit}
    return find_best_batch(kernel, device_model, [shape], dtype, options, **more, reading=reading)[0]


def find_best_batch(
    kernel: str,
    device_model: str | None,
    shapes: Sequence[Mapping[str, int]],
    dtype: str = "float32",
    options: Mapping[str, OptionValue] | None = None,
    *,
    driver: str | None = None,
    toolkit: str | None = None,
    reading: Reading = transaction,
) -> list[BestAnswer]:
    """One answer per shape, in order, with a handful of queries in all; raises like `find_best`."""
    asked = Asked.of(kernel, device_model, shapes, dtype, options, driver=driver, toolkit=toolkit, reading=reading)
    found = find_in(asked.rows(reading), asked.problems)
    return [found[problem.hash] for problem in asked.problems]


def find_in(rows: DatabaseRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """The answers by problem hash, for one kernel; problems that the rows do not compute are left out."""
    answers: dict[str, BestAnswer] = {}
    for problem, stored, limits in rows.exact(problems):
        answer = first_usable(rows.query(problem, limits), stored, Match.EXACT)
        if answer is not None:
            answers[problem.hash] = answer
    missing = list({p.hash: p for p in problems if p.hash not in answers}.values())
    answers |= _in_ranges(rows, missing)
    answers |= _of_dense(rows, [problem for problem in missing if problem.hash not in answers])
    by_axes: dict[tuple[object, ...], list[Problem]] = {}
    for problem in missing:
        if problem.hash not in answers:
            by_axes.setdefault((*(axis for axis, _ in problem.sizes), *problem.rules), []).append(problem)
    for alike in by_axes.values():
        answers |= _without_exact(rows, alike)
    return answers


def nearest_first(rows: DatabaseRows, problems: Sequence[Problem]) -> list[int]:
    """The places of these problems, those nearest to a tuned problem or shipped record first."""
    first = problems[0]
    known = rows.known_sizes(first)
    distances = []
    for problem in problems:
        is_alike = problem.sizes and [axis for axis, _ in problem.sizes] == [axis for axis, _ in first.sizes]
        asked = np.log(np.array([size for _, size in problem.sizes], dtype=np.float64))
        is_ranked = is_alike and len(known)
        distances.append(float(np.abs(known - asked).sum(axis=1).min()) if is_ranked else math.inf)
    return sorted(range(len(problems)), key=distances.__getitem__)


def _in_ranges(rows: DatabaseRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """Answers for sizes of a tuned family, by problem hash: the serving configuration, where it is sound here too."""
    answers: dict[str, BestAnswer] = {}
    served = rows.in_tables(problems) if problems and rows.kernel.launch_axes else {}
    for problem in problems:
        if (found := served.get(problem.hash)) is not None:
            query, configuration = rows.query(problem, rows.limits), found.configuration
            variant = rows.kernel.variant(configuration.variant)
            if variant in query.usable_variants and variant.is_sound(configuration.values, problem, query.limits):
                answers[problem.hash] = range_answer(query, found)
    return answers


def _of_dense(rows: DatabaseRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """Answers for arrays with gaps, by problem hash: the best of the same problem without any, where it fits."""
    with_gaps = [problem for problem in problems if problem.dense != problem]
    by_dense = {problem.dense: problem for problem in with_gaps}
    answers: dict[str, BestAnswer] = {}
    for dense, stored, limits in rows.exact(list(by_dense)) if by_dense else ():
        for problem in (p for p in with_gaps if p.dense == dense):
            answer = first_usable(_unverified(rows, problem, limits), stored, Match.NEAREST)
            answers |= {} if answer is None else {problem.hash: answer}
    return answers


def _without_exact(rows: DatabaseRows, problems: Sequence[Problem]) -> dict[str, BestAnswer]:
    """Predicted, nearest, transferred or default answers, by problem hash."""
    limits = rows.limits
    asked = {problem.hash: _unverified(rows, problem, limits) for problem in problems}
    predicted = rows.predicted(list(asked.values()))
    answers = {p.hash: predicted_answer(asked[p.hash], made) for p, made in predicted.items() if made is not None}
    others = [asked[p.hash] for p, made in predicted.items() if made is None]

    def unanswered() -> list[BestQuery]:
        return [query for query in others if query.problem.hash not in answers]

    for match in (Match.NEAREST, Match.TRANSFERRED):
        if not unanswered():
            break
        tuned = rows.tuned(problems[0], transferred=match is Match.TRANSFERRED)
        answers |= _by_distance(rows, match, tuned, unanswered())
    if unanswered():
        elsewhere = rows.from_other_models(unanswered())
        answers |= {hashed: answer for hashed, answer in elsewhere.items() if answer is not None}
        answers |= rows.defaults([query for query in unanswered() if query.problem.hash in elsewhere])
    return answers


def _unverified(rows: DatabaseRows, problem: Problem, limits: Limits) -> BestQuery:
    """The query for a problem without a verified answer; configurations found wrong there are left out."""
    query = rows.query(problem, limits)
    return replace(query, wrong=rows.wrong.get(problem.hash, ())) if rows.wrong else query


def _by_distance(
    source: DatabaseRows, match: Match, tuned: TunedShapes, asked: Sequence[BestQuery]
) -> dict[str, BestAnswer]:
    """Answers by problem hash: each from the nearest tuned problem whose configuration fits, where there is one."""
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


def _from_afar(source: DatabaseRows, asked: BestQuery, rows: Sequence[StoredBest]) -> Mapping[str, BestAnswer]:
    chosen = choose(asked, rows)
    if chosen is None:
        return source.defaults([asked])
    return {asked.problem.hash: answer_by(asked, chosen, Match.ESTIMATED)}
