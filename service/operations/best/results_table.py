"""The current best configurations as a table: in any order, and only with certain values of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Select, func, select, true
from sqlalchemy.orm import Session

from tilewright.service.operations.best.results import (
    Bounds,
    ResultAnswer,
    current_results,
    result_answers,
    selected,
    with_relations,
)
from tilewright.service.operations.pages import ordering
from tilewright.service.operations.shape_filter import in_order
from tilewright.service.operations.staleness.standing import is_current
from tilewright.service.store import models

COLUMNS: Mapping[str, bool] = {
    "verified": True,
    "problem": False,
    "model": False,
    "configuration": False,
    "time": False,
    "rate": True,
    "roof": True,
    "default": True,
    "library": True,
}
"""The sortable columns of the table, and whether the greatest values come first."""


MOST_MODELS = 20
"""Device models that are shown at once: ten rows of each of a thousand models took most of a minute."""


@dataclass(frozen=True)
class TableFilter:
    """The filter of the table's best configurations."""

    device_model: str | None = None
    kernel: str | None = None
    selection: Bounds = field(default_factory=dict)
    variant: str | None = None


@dataclass(frozen=True)
class ModelResults:
    """The first best configurations of one device model in the table's order, and how many it has in all."""

    items: list[ResultAnswer]
    total: int


def result_table(session: Session, which: TableFilter, order: str, *, limit: int, skip: int = 0) -> list[ResultAnswer]:
    """The table's rows in that order, one of COLUMNS, with - for downwards; rows without a value last."""
    best = models.BestConfiguration
    shown = _ordered(_narrowed(select(best.id), which), order).limit(limit).offset(skip).subquery()  # sorts ids alone
    query = with_relations(_ordered(select(best).join(shown, shown.c.id == best.id), order))
    return result_answers(session, session.scalars(query).all())


def results_by_model(session: Session, which: TableFilter, order: str, *, each: int) -> dict[str, ModelResults]:
    """The first `each` rows of the table, by device model's slug, for the MOST_MODELS with most rows."""
    best, model = models.BestConfiguration, models.DeviceModel
    own = _narrowed(select(best.id), replace(which, device_model=None)).where(best.device_model_id == model.id)
    first = _ordered(own, order).correlate(model).limit(each).lateral("first")
    counted = own.with_only_columns(func.count().label("total")).correlate(model).lateral("counted")
    picked = select(first.c.id, counted.c.total).select_from(model).join(counted, true()).join(first, true())
    if which.device_model is not None:
        picked = picked.where(model.slug == which.device_model)
    else:
        largest = _narrowed(select(best.device_model_id), which).group_by(best.device_model_id)
        picked = picked.where(model.id.in_(largest.order_by(func.count().desc()).limit(MOST_MODELS)))
    ranked = picked.subquery()
    query = with_relations(select(best).add_columns(ranked.c.total)).join(ranked, ranked.c.id == best.id)
    rows = session.execute(_ordered(query, order)).all()
    by_model: dict[str, ModelResults] = {}
    for answer, (_, count) in zip(result_answers(session, [row for row, _ in rows]), rows, strict=True):
        by_model.setdefault(answer.device_model, ModelResults([], count)).items.append(answer)
    return by_model


@dataclass(frozen=True)
class KernelResults:
    """The number of a kernel's best configurations, and when the newest was verified; None without any."""

    total: int
    verified_at: datetime | None


def results_by_kernel(session: Session) -> dict[str, KernelResults]:
    """The results in short, by kernel; a kernel without any is absent."""
    best = models.BestConfiguration
    figures = select(models.Kernel.name, func.count(), func.max(best.verified_at)).where(is_current())
    counted = figures.select_from(best).join(best.problem).join(models.Problem.kernel).group_by(models.Kernel.name)
    return {name: KernelResults(total, verified_at) for name, total, verified_at in session.execute(counted)}


def count_results(session: Session, which: TableFilter) -> int:
    """How many rows the whole table has."""
    count: int = session.scalars(_narrowed(select(func.count(models.BestConfiguration.id)), which)).one()
    return count


def _narrowed(query: Select[Any], which: TableFilter) -> Select[Any]:
    best = models.BestConfiguration
    query = current_results(query, None, None).where(*selected(which.selection, which.variant))
    if which.kernel is not None:
        query = query.where(best.problem.has(models.Problem.kernel.has(models.Kernel.name == which.kernel)))
    if which.device_model is not None:
        model = select(models.DeviceModel.id).where(models.DeviceModel.slug == which.device_model)
        query = query.where(best.device_model_id == model.scalar_subquery())
    return query


def _ordered(query: Select[Any], order: str) -> Select[Any]:
    """The query in that order, joined with what the order needs and no more."""
    best, trial, problem, kernel = models.BestConfiguration, models.Trial, models.Problem, models.Kernel
    slug = select(models.DeviceModel.slug).where(models.DeviceModel.id == best.device_model_id).correlate(best)
    columns: dict[str, list[Any]] = {
        "verified": [best.verified_at],
        "problem": in_order(kernel.name, problem.shape, problem.dtype),
        "model": [slug.scalar_subquery()],
        "configuration": [trial.configuration["variant"].astext, trial.configuration],
        "time": [best.time_ms],
        "rate": [best.gflops],
        "roof": [best.roof_ratio],
        "default": [best.default_ms / best.time_ms],
        "library": [best.library_ms / best.time_ms],
    }
    column = order.removeprefix("-")
    if column == "configuration":
        query = query.join(trial, trial.id == best.trial_id)
    if column == "problem":
        query = query.join(problem, problem.id == best.problem_id).join(kernel, kernel.id == problem.kernel_id)
    return query.order_by(*ordering(columns[column], order), best.id.desc())
