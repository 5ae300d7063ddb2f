"""The rows that find_in reads, and how much may be computed for an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.answer import (
    BestQuery,
    default_answers,
    transferred_answer,
)
from tilewright.service.operations.best.predictions import MOST_SHAPES, Series, predictions
from tilewright.service.operations.best.rows import (
    MAX_RANKED,
    NOTHING_TUNED,
    EnvironmentFilter,
    TunedShapes,
    exact_rows,
    rows_by_id,
    similar_shapes,
    wrong_configurations,
)
from tilewright.service.operations.best.shipped import shipped_elsewhere, shipped_model, shipped_records, shipped_slugs
from tilewright.service.operations.best.stored import StoredBest
from tilewright.service.operations.best.tables import Served, served_by_tables
from tilewright.service.operations.registry import limits_of
from tilewright.service.operations.transaction import Reading, transaction
from tilewright.service.store import models
from tilewright.tuner.predict.record import Prediction, Record, enough


class Effort(Enum):
    """Slow steps that an answer may take: predictions, and the search for a default that fits."""

    ALL = auto()
    LOOK_UP = auto()
    """Problems that need either are left out."""
    MEANWHILE = auto()
    """Problems that need a prediction are answered without, and marked as pending."""
    ROUGH = auto()
    """Rough predictions: only the kind of answer and the expected loss count, and the problem is marked so."""


@dataclass
class DatabaseRows:
    """The rows in the database, of the environments that the caller accepts; each read has a transaction of its own.

    `until`: the moment of `time.monotonic` after which no further prediction is begun.
    """

    kernel: Kernel
    slug: str
    environment: EnvironmentFilter
    reading: Reading = transaction
    effort: Effort = Effort.ALL
    until: float | None = None
    pending: set[Problem] = field(default_factory=set)
    rough: set[Problem] = field(default_factory=set)

    @cached_property
    def _model(self) -> models.DeviceModel:
        there = models.DeviceModel
        with self.reading() as session:
            row = session.scalars(select(there).where(there.slug == self.slug)).one_or_none()
            row = row or shipped_model(self.slug)
            if row is None:
                known = session.scalars(select(there.slug).order_by(there.slug).limit(50)).all()
                raise NotFoundError("device model", self.slug, sorted({*known, *shipped_slugs()}))
        return row

    @cached_property
    def wrong(self) -> Mapping[str, Collection[Configuration]]:
        """Configurations found wrong, as `wrong_configurations` has them."""
        with self.reading() as session:
            return wrong_configurations(session, self.kernel, self.slug)

    @property
    def limits(self) -> Limits:
        """The device model's limits; raises NotFoundError for an unknown one."""
        return limits_of(self._model)

    def query(self, problem: Problem, limits: Limits) -> BestQuery:
        """The query for that problem."""
        return BestQuery(self.kernel, problem, self.slug, limits)

    def exact(self, problems: Sequence[Problem]) -> list[tuple[Problem, list[StoredBest], Limits]]:
        """Each tuned problem with its rows, the one to use first, and the device model's limits."""
        with self.reading() as session:
            rows = list(exact_rows(session, self.kernel, self.slug, problems, self.environment))
        return [(problem, found, limits_of(model)) for problem, found, model in rows]

    def tuned(self, like: Problem, *, transferred: bool, most: int = MAX_RANKED) -> TunedShapes:
        """The newest tuned shapes, so many, of this device model or of others of its kind."""
        model, kernel, wanted = self._model, self.kernel, self.environment
        with self.reading() as session:
            return similar_shapes(session, kernel, like, model, wanted, transferred=transferred, most=most)

    def by_id(self, ids: Collection[int]) -> Mapping[int, StoredBest]:
        """The rows that are still current, by id."""
        with self.reading() as session:
            return rows_by_id(session, ids)

    def in_tables(self, problems: Sequence[Problem]) -> Mapping[str, Served]:
        """Per problem hash, how a table of its family serves it; most problems have none."""
        with self.reading() as session:
            return served_by_tables(session, self.kernel, self.slug, problems, self.environment)

    def predicted(self, asked: Sequence[BestQuery]) -> Mapping[Problem, Prediction | None]:
        """Predictions, None for a problem that allows none; those are left out whose prediction is not made now.

        For batches, where enough are tuned, or records of them or of what they are akin to shipped.
        """
        first = asked[0]
        tuned = self.tuned(first.problem, transferred=False, most=MOST_SHAPES)
        is_batch = first.problem.sizes != first.problem.axes
        count = tuned.batches if is_batch else len(tuned.ids)
        shipped = shipped_records(self.kernel, self.slug, first.limits, count, first.problem, self.environment)
        if not enough(max(count, len(shipped))):
            return {query.problem: None for query in asked}
        return self._made(first.limits, tuned, asked, shipped)

    def known_sizes(self, like: Problem) -> NDArray[np.float64]:
        """Logarithms of the sizes that predictions for such problems rest on, a row each."""
        tuned = self.tuned(like, transferred=False, most=MOST_SHAPES)
        shipped = shipped_records(self.kernel, self.slug, self.limits, len(tuned.ids), like, self.environment)
        axes = [axis for axis, _ in like.sizes]
        sizes = [[size for _, size in r.problem.sizes] for r in shipped if [a for a, _ in r.problem.sizes] == axes]
        return np.concatenate((tuned.log_shapes.reshape(-1, len(axes)), np.log(np.array(sizes).reshape(-1, len(axes)))))

    def from_other_models(self, asked: Sequence[BestQuery]) -> Mapping[str, BestAnswer | None]:
        """Answers from another device model's shipped records, by problem hash; None and left out as above."""
        series = shipped_elsewhere(self.kernel, self._model, asked[0].problem, self.environment)
        if series is None:
            return {query.problem.hash: None for query in asked}
        predicted = self._made(series.limits, NOTHING_TUNED, asked, series.records)
        answers: dict[str, BestAnswer | None] = {}
        for query in asked:
            if query.problem in predicted:
                made = predicted[query.problem]
                answer = None if made is None else transferred_answer(query, made, series.device_model)
                answers[query.problem.hash] = answer
        return answers

    def defaults(self, asked: Sequence[BestQuery]) -> Mapping[str, BestAnswer]:
        """The kernel's default for each problem, by hash; problems for which none is sought are left out."""
        return default_answers(asked, is_search_allowed=self.effort in {Effort.ALL, Effort.ROUGH})

    def _made(
        self, limits: Limits, tuned: TunedShapes, asked: Sequence[BestQuery], shipped: Sequence[Record]
    ) -> Mapping[Problem, Prediction | None]:
        match self.effort:
            case Effort.LOOK_UP:
                return {}
            case Effort.MEANWHILE:
                self.pending.update(query.problem for query in asked)
                return {query.problem: None for query in asked}
        series = Series(self.kernel, limits, self._model.id, asked[0].problem)
        admits = {query.problem: query.is_member for query in asked}
        is_rough = self.effort is Effort.ROUGH
        made = predictions(self.reading, series, tuned, admits, shipped=shipped, until=self.until, is_rough=is_rough)
        self.rough.update(problem for problem, one in made.items() if is_rough and one is not None)
        return made
