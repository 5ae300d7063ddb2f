"""The queries behind find_best: current best configurations with all that an answer needs, and shapes to rank."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, ColumnElement, Text, and_, cast, func, select, true
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Session

from tilewright.kernels.kernel import Kernel
from tilewright.kernels.problem import Problem
from tilewright.kernels.space import Configuration
from tilewright.service.operations.best.stored import COLUMNS, MEASURED, StoredBest, stored_best
from tilewright.service.operations.staleness.standing import is_current, source_key, source_keys, with_standing
from tilewright.service.store import models
from tilewright.service.store.models import ClaimState

MAX_RANKED = 20_000
"""How many tuned shapes, the newest, are ranked by distance: this bounds the work of one question."""


TRIED = 64
"""How many nearest results are tried before the next kind of match: some do not fit the requested problem."""

TRIED_FIRST = 8
"""How many of them the first query reads; for most questions the very first one fits."""


@dataclass(frozen=True)
class EnvironmentFilter:
    """The driver and toolkit that a caller requires; None accepts any."""

    driver: str | None = None
    toolkit: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on a joined `environments`."""
        asked = ((models.Environment.driver, self.driver), (models.Environment.toolkit, self.toolkit))
        return [column == value for column, value in asked if value is not None]


def full_rows(*more: Any, current: bool = True) -> Any:
    """The query for all, or all current ones, with everything that `stored_best` reads, and `more` columns after it."""
    best = models.BestConfiguration
    query = (
        select(*COLUMNS)
        .join(best.environment)
        .join(best.device_model)
        .join(best.problem)
        .join(best.trial)
        .join(MEASURED, MEASURED.id == models.Trial.kernel_variant_id)
    )
    query = with_standing(query).add_columns(*more)
    return query.where(is_current()) if current else query


def exact_rows(
    session: Session, kernel: Kernel, slug: str, problems: Sequence[Problem], wanted: EnvironmentFilter
) -> Iterator[tuple[Problem, list[StoredBest], models.DeviceModel]]:
    """Each tuned problem with its rows, the one to use first, and its device model."""
    by_hash = {problem.hash: problem for problem in problems}
    query = (
        full_rows(models.Problem.hash, models.DeviceModel)
        .where(models.DeviceModel.slug == slug, models.Problem.hash.in_(list(by_hash)), *wanted.conditions())
        .order_by(models.Problem.hash)
    )
    for problem_hash, group in groupby(session.execute(query), key=lambda row: row[-2]):
        rows = list(group)
        yield by_hash[problem_hash], in_preference(kernel, [stored_best(row) for row in rows]), rows[0][-1]


def in_preference(kernel: Kernel, rows: Sequence[StoredBest]) -> list[StoredBest]:
    """One problem's rows in several environments, the one to use first, where the problem admits its configuration.

    Measured here before imported; fresh before stale; among stale ones what was measured last; then the fastest. An
    environment's number says nothing of that: a driver that was put back has its old one.
    """
    if len(rows) == 1:
        return list(rows)
    current = source_keys(kernel)

    def rank(row: StoredBest) -> tuple[bool, bool, float, int, float]:
        stale = bool(row.seen.moved) or source_key(*row.source) != current.get(row.source.name)
        newest = (-row.verified_at.timestamp(), -row.environment_id) if stale else (0.0, 0)
        return row.environment.origin is not None, stale, *newest, row.time_ms

    return sorted(rows, key=rank)


def count_retracted(session: Session, kernel: str, model_id: int | None) -> int:
    """How many bests of the kernel on the device model were retracted, superseded ones too, and how many claims
    confirmed; it only grows.
    """
    best, claim = models.BestConfiguration, models.Claim
    retracted = select(func.count()).select_from(best).join(best.problem).join(models.Problem.kernel)
    retracted = retracted.where(best.device_model_id == model_id, best.retracted_at.is_not(None))
    confirmed = select(func.count()).select_from(claim).join(claim.problem).join(models.Problem.kernel)
    confirmed = confirmed.where(claim.device_model_id == model_id, claim.state == ClaimState.CONFIRMED)
    of_kernel = models.Kernel.name == kernel
    counts = retracted.where(of_kernel).scalar_subquery() + confirmed.where(of_kernel).scalar_subquery()
    return session.scalar(select(counts)) or 0


def wrong_configurations(session: Session, kernel: Kernel, slug: str) -> dict[str, frozenset[Configuration]]:
    """Per problem hash, configurations that a worker found wrong after a claim; they are not answered there again."""
    claim, problem = models.Claim, models.Problem
    rows = session.execute(
        select(problem.hash, claim.configuration, claim.source_hash)
        .join(claim.problem)
        .join(claim.device_model)
        .join(problem.kernel)
        .where(claim.state == ClaimState.CONFIRMED, models.DeviceModel.slug == slug, models.Kernel.name == kernel.name)
    )
    found: dict[str, frozenset[Configuration]] = {}
    current = {variant.name for variant in kernel.variants}
    for problem_hash, stored, source_hash in rows:
        configuration = Configuration.from_json(stored)
        if configuration.variant in current and kernel.has_source(configuration.variant, source_hash):
            found[problem_hash] = found.get(problem_hash, frozenset()) | {configuration}
    return found


def rows_by_id(session: Session, ids: Collection[int]) -> dict[int, StoredBest]:
    """The rows that are still current, by id."""
    if not ids:
        return {}
    rows = session.execute(full_rows().where(models.BestConfiguration.id.in_(list(ids))))
    return {row[0]: stored_best(row) for row in rows}


@dataclass(frozen=True)
class TunedShapes:
    """Tuned shapes as a matrix of logarithms, to rank them by distance to an asked one."""

    ids: NDArray[np.int64]
    log_shapes: NDArray[np.float64]  # (results, axes)
    offsets: NDArray[np.float64]  # distance between device models; 0 on the same one
    times_ms: NDArray[np.float64]  # decides between equal distances

    @property
    def batches(self) -> int:
        """The number of tuned shapes with a batch, the last axis."""
        return int(np.count_nonzero(self.log_shapes[:, -1]))

    def nearest(self, problem: Problem, count: int) -> list[int]:
        """The ids of the `count` nearest results: sum over the axes of |log size ratio|, plus the models' distance.

        The problem has the sizes of the one that they are `similar_shapes` of.
        """
        if not self.ids.size:
            return []
        asked = np.log(np.array([size for _, size in problem.sizes], dtype=np.float64))
        distances = np.abs(self.log_shapes - asked).sum(axis=1) + self.offsets
        near = np.arange(len(distances))
        if len(distances) > count:  # sorting twenty thousand takes longer than all the rest
            near = np.flatnonzero(distances <= np.partition(distances, count - 1)[count - 1])
        order = np.lexsort((self.ids[near], self.times_ms[near], distances[near]))
        return [int(i) for i in self.ids[near[order[:count]]]]


NOTHING_TUNED = TunedShapes(np.empty(0, np.int64), np.empty((0, 1)), np.empty(0), np.empty(0))
"""The rows of a device model before its first job."""


def similar_shapes(
    session: Session,
    kernel: Kernel,
    like: Problem,
    model: models.DeviceModel,
    wanted: EnvironmentFilter,
    *,
    transferred: bool,
    most: int = MAX_RANKED,
) -> TunedShapes:
    """The newest tuned problems with the kernel, dtype and options of `like`, on this model or on others of its kind.

    Of dense arrays; for a batch also those without one, which then has a size of 1.
    """
    best, there = models.BestConfiguration, models.DeviceModel
    # Numbers of the database's making: as JSON, twenty thousand shapes would take a third of a second to read.
    stored = {axis: models.Problem.shape[axis].astext for axis, _ in like.sizes}
    sizes = [cast(s if axis in kernel.axes else func.coalesce(s, "1"), BigInteger) for axis, s in stored.items()]
    # Result by result: PostgreSQL expects that hardly a problem is alike, and would begin with those of a million.
    shape = (
        select(*(size.label(axis) for axis, size in zip(stored, sizes, strict=True)))
        .join(models.Problem.kernel)
        .where(models.Problem.id == best.problem_id, *alike(kernel, like))
        .limit(1)
        .lateral()
    )
    query = (
        select(best.id, best.time_ms, there.multiprocessors, there.compute_capability, *shape.c)
        .join(best.device_model)
        .join(best.environment)
        .join(shape, true())
        .where(
            is_current(),
            and_(there.kind == model.kind, there.id != model.id) if transferred else there.id == model.id,
            *wanted.conditions(),
        )
        .order_by(best.id.desc())
        .limit(most)
    )
    rows = [tuple(row) for row in session.execute(query) if None not in row]  # of a kernel that had fewer axes once
    offsets = {kind: model_distance(model, *kind) for kind in {row[2:4] for row in rows}}
    return TunedShapes(
        ids=np.array([row[0] for row in rows], dtype=np.int64),
        log_shapes=np.log(np.array([row[4:] for row in rows], dtype=np.float64).reshape(-1, len(sizes))),
        offsets=np.array([offsets[row[2:4]] for row in rows], dtype=np.float64),
        times_ms=np.array([row[1] for row in rows], dtype=np.float64),
    )


def alike(kernel: Kernel, like: Problem) -> list[ColumnElement[bool]]:
    """Conditions on joined `kernels` and `problems`: the kernel, dtype and options of `like`, and no other axes.

    Axes for the amount of work count, those for where arrays lie do not; others, such as a convolution's stride, must
    be equal.
    """
    return [
        models.Kernel.name == kernel.name,
        models.Problem.dtype == like.dtype,
        models.Problem.options == dict(like.options),
        _besides([axis for axis, _ in like.sizes]) == dict(like.rules),
    ]


def _besides(axes: Sequence[str]) -> ColumnElement[Any]:
    """Axes that a joined problem's shape has beside these; the kernel may once have had others."""
    return models.Problem.shape.op("-", return_type=JSONB())(cast(list(axes), ARRAY(Text)))


def model_distance(model: models.DeviceModel, multiprocessors: int, compute_capability: str) -> float:
    """How unlike two models are: logarithms of the ratios of multiprocessors and compute capability."""
    return abs(math.log(multiprocessors / model.multiprocessors)) + abs(
        math.log(_capability(compute_capability) / _capability(model.compute_capability))
    )


def _capability(text: str) -> float:
    """`9.0` as 9.0; a CPU device states none that is a number above 0, which counts as 1."""
    major, _, minor = text.partition(".")
    value = int(major) + int(minor) / 10 if major.isdigit() and minor.isdigit() else 0.0
    return value if value > 0 else 1.0
