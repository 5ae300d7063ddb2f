"""The queries behind find_best: current best configurations with all that an answer needs, and shapes to rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Select, and_, select
from sqlalchemy.orm import Session, joinedload

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.service.operations.staleness import Seen, source_key, source_keys, with_standing
from tilewright.service.store import models

MAX_RANKED = 20_000
"""Tuned shapes that are ranked, newest first: a bound on the work of one question."""


@dataclass(frozen=True)
class EnvironmentFilter:
    """The driver and toolkit that a caller insists on; None takes any."""

    driver: str | None = None
    toolkit: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on a joined `environments`."""
        asked = ((models.Environment.driver, self.driver), (models.Environment.toolkit, self.toolkit))
        return [column == value for column, value in asked if value is not None]


@dataclass(frozen=True)
class BestRow:
    """A current best configuration, what moved on around it, and what its study has tried."""

    best: models.BestConfiguration
    seen: Seen

    @property
    def device_model(self) -> models.DeviceModel:
        """The product it was measured on."""
        return self.best.device_model

    @property
    def source_hash(self) -> str:
        """The hash of the source that was measured."""
        return self.best.trial.kernel_variant.source_hash


def _is_current() -> ColumnElement[bool]:
    best = models.BestConfiguration
    return and_(best.superseded_by_id.is_(None), best.retracted_at.is_(None))


def _full_rows() -> Select[Any]:
    """Everything in one query: the row, its relations, and the facts that need other tables."""
    best = models.BestConfiguration
    query = (
        select(best)
        .join(best.environment)
        .join(best.device_model)
        .join(best.problem)
        .options(
            joinedload(best.problem),
            joinedload(best.device_model),
            joinedload(best.environment),
            joinedload(best.trial).joinedload(models.Trial.kernel_variant),
        )
        .where(_is_current())
    )
    found: Select[Any] = with_standing(query)
    return found


def _rows(session: Session, query: Select[Any]) -> list[BestRow]:
    return [BestRow(best, Seen.of(moved, tried, space)) for best, *moved, tried, space in session.execute(query)]


def exact_rows(
    session: Session, kernel: Kernel, slug: str, problems: Sequence[Problem], wanted: EnvironmentFilter
) -> Iterator[tuple[Problem, BestRow]]:
    """Each tuned problem with its row; of several environments the one to use (see `_preference`)."""
    by_hash = {problem.hash: problem for problem in problems}
    query = (
        _full_rows()
        .where(models.DeviceModel.slug == slug, models.Problem.hash.in_(list(by_hash)), *wanted.conditions())
        .order_by(models.Problem.hash)
    )
    current = source_keys(kernel)
    for problem_hash, group in groupby(_rows(session, query), key=lambda row: row.best.problem.hash):
        yield by_hash[problem_hash], min(group, key=lambda row: _preference(row, current))


def _preference(row: BestRow, current_sources: dict[str, str]) -> tuple[bool, bool, int, float]:
    """Measured here before imported; fresh before stale; among stale ones the newest environment; then the fastest."""
    name = row.best.trial.kernel_variant.name
    stale = bool(row.seen.moved) or source_key(name, row.source_hash) != current_sources.get(name)
    return row.best.environment.origin is not None, stale, -row.best.environment_id if stale else 0, row.best.time_ms


def rows_by_id(session: Session, ids: Collection[int]) -> dict[int, BestRow]:
    """The rows that are still current, by id."""
    if not ids:
        return {}
    found = _rows(session, _full_rows().where(models.BestConfiguration.id.in_(list(ids))))
    return {row.best.id: row for row in found}


@dataclass(frozen=True)
class Tuned:
    """Tuned shapes as a matrix of logarithms, to rank them by distance to an asked one."""

    ids: NDArray[np.int64]
    log_shapes: NDArray[np.float64]  # (results, axes)
    offsets: NDArray[np.float64]  # distance between device models; 0 on the same one
    times_ms: NDArray[np.float64]  # decides between equal distances

    def nearest(self, problem: Problem, count: int) -> list[int]:
        """The ids of the `count` nearest results: sum over the axes of |log size ratio|, plus the models' distance."""
        if not self.ids.size:
            return []
        asked = np.log(np.array([size for _, size in problem.axes], dtype=np.float64))
        distances = np.abs(self.log_shapes - asked).sum(axis=1) + self.offsets
        order = np.lexsort((self.ids, self.times_ms, distances))
        return [int(i) for i in self.ids[order[:count]]]


def similar_shapes(
    session: Session,
    kernel: Kernel,
    like: Problem,
    model: models.DeviceModel,
    wanted: EnvironmentFilter,
    *,
    transferred: bool,
) -> Tuned:
    """The tuned problems with the kernel, dtype and options of `like`, on this model or on others of its kind."""
    best, there = models.BestConfiguration, models.DeviceModel
    query = (
        select(best.id, models.Problem.shape, best.time_ms, there.multiprocessors, there.compute_capability)
        .join(best.problem)
        .join(models.Problem.kernel)
        .join(best.device_model)
        .join(best.environment)
        .where(
            _is_current(),
            models.Kernel.name == kernel.name,
            models.Problem.dtype == like.dtype,
            models.Problem.options == dict(like.options),
            and_(there.kind == model.kind, there.id != model.id) if transferred else there.id == model.id,
            *wanted.conditions(),
        )
        .order_by(best.id.desc())
        .limit(MAX_RANKED)
    )
    rows = [row for row in session.execute(query) if set(row.shape) == set(kernel.axes)]
    return Tuned(
        ids=np.array([row.id for row in rows], dtype=np.int64),
        log_shapes=np.log(np.array([[row.shape[axis] for axis in kernel.axes] for row in rows], dtype=np.float64)),
        offsets=np.array([_model_distance(model, row.multiprocessors, row.compute_capability) for row in rows]),
        times_ms=np.array([row.time_ms for row in rows], dtype=np.float64),
    )


def _model_distance(model: models.DeviceModel, multiprocessors: int, compute_capability: str) -> float:
    """How unlike two models are: the logarithm of their ratio in multiprocessors and in compute capability."""
    return abs(math.log(multiprocessors / model.multiprocessors)) + abs(
        math.log(_capability(compute_capability) / _capability(model.compute_capability))
    )


def _capability(text: str) -> float:
    """`9.0` as 9.0; a CPU device states none that is a number above 0, which counts as 1."""
    major, _, minor = text.partition(".")
    value = int(major) + int(minor) / 10 if major.isdigit() and minor.isdigit() else 0.0
    return value if value > 0 else 1.0
