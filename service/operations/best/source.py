"""Where find_best reads its rows: in the database, or in memory (`best_cache/shelf.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Configuration
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.answers import BestAnswer
from tilewright.service.operations.best.answer import BestQuery, transferred_answer
from tilewright.service.operations.best.predictions import predictions
from tilewright.service.operations.best.rows import (
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
from tilewright.service.operations.registry import limits_of
from tilewright.service.store import models
from tilewright.tuner.predict.predictor import Prediction, enough
from tilewright.tuner.predict.tiles import Tiles


class BestRows(Protocol):
    """The results of one kernel on one device model that an answer is chosen from."""

    kernel: Kernel
    slug: str

    @property
    def limits(self) -> Limits:
        """The device model's limits; raises NotFoundError for an unknown one."""

    @property
    def wrong(self) -> Mapping[str, Collection[Configuration]]:
        """As `wrong_configurations` has them."""

    def query(self, problem: Problem, limits: Limits) -> BestQuery:
        """The question for that problem."""

    def exact(self, problems: Sequence[Problem]) -> Iterable[tuple[Problem, StoredBest, Limits]]:
        """Each tuned problem with the row to use and the device model's limits."""

    def tuned(self, like: Problem, *, transferred: bool) -> TunedShapes:
        """The tuned shapes that are ranked by distance, of this model or of others of its kind."""

    def by_id(self, ids: Collection[int]) -> Mapping[int, StoredBest]:
        """The rows that are still current, by id."""

    def predicted(self, tuned: TunedShapes, asked: Sequence[BestQuery]) -> Mapping[Problem, Prediction]:
        """Predictions for the problems that allow one."""

    def tiles(self, like: Problem) -> Tiles | None:
        """What estimates remember of problems like this one, where anything is kept."""

    def from_other_models(self, asked: Sequence[BestQuery]) -> Mapping[str, BestAnswer]:
        """Answers from shipped records of another device model, by problem hash, where there are any."""


@dataclass
class DatabaseRows:
    """The rows in the database, of the environments that the caller accepts."""

    session: Session
    kernel: Kernel
    slug: str
    environment: EnvironmentFilter

    @cached_property
    def _model(self) -> models.DeviceModel:
        there = models.DeviceModel
        row = self.session.scalars(select(there).where(there.slug == self.slug)).one_or_none()
        row = row or shipped_model(self.slug)
        if row is None:
            known = self.session.scalars(select(there.slug).order_by(there.slug).limit(50)).all()
            raise NotFoundError("device model", self.slug, sorted({*known, *shipped_slugs()}))
        return row

    @cached_property
    def wrong(self) -> Mapping[str, Collection[Configuration]]:
        """See BestRows."""
        return wrong_configurations(self.session, self.kernel, self.slug)

    @property
    def limits(self) -> Limits:
        """See BestRows."""
        return limits_of(self._model)

    def query(self, problem: Problem, limits: Limits) -> BestQuery:
        """See BestRows."""
        return BestQuery(self.kernel, problem, self.slug, limits)

    def exact(self, problems: Sequence[Problem]) -> Iterable[tuple[Problem, StoredBest, Limits]]:
        """See BestRows."""
        for problem, row, model in exact_rows(self.session, self.kernel, self.slug, problems, self.environment):
            yield problem, row, limits_of(model)

    def tuned(self, like: Problem, *, transferred: bool) -> TunedShapes:
        """See BestRows."""
        return similar_shapes(self.session, self.kernel, like, self._model, self.environment, transferred=transferred)

    def by_id(self, ids: Collection[int]) -> Mapping[int, StoredBest]:
        """See BestRows."""
        return rows_by_id(self.session, ids)

    def predicted(self, tuned: TunedShapes, asked: Sequence[BestQuery]) -> Mapping[Problem, Prediction]:
        """See BestRows. For batches, where enough are tuned, or records of them or of what they are akin to shipped."""
        first, admits = asked[0], {query.problem: query.is_member for query in asked}
        is_batch = first.problem.sizes != first.problem.axes
        count = tuned.batches if is_batch else len(tuned.ids)
        shipped = shipped_records(self.kernel, self.slug, first.limits, count, first.problem, self.environment)
        if is_batch and not shipped and not enough(count):
            return {}
        return predictions(self.session, self.kernel, first.limits, self._model.id, tuned, admits, shipped=shipped)

    def tiles(self, like: Problem) -> Tiles | None:  # noqa: ARG002
        """See BestRows."""
        return None

    def from_other_models(self, asked: Sequence[BestQuery]) -> Mapping[str, BestAnswer]:
        """See BestRows."""
        series = shipped_elsewhere(self.kernel, self._model, asked[0].problem, self.environment) if asked else None
        if series is None:
            return {}
        admits = {query.problem: query.is_member for query in asked}
        predicted = predictions(
            self.session, self.kernel, series.limits, self._model.id, NOTHING_TUNED, admits, shipped=series.records
        )
        return {
            query.problem.hash: transferred_answer(query, predicted[query.problem], series.device_model)
            for query in asked
            if query.problem in predicted
        }
