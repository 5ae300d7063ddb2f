"""Kernels in a line each, and one of them on each device model: what is tuned, and what needs somebody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field
from sqlalchemy import CTE, ScalarSelect, func, select, true
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from tilewright.service.operations.answers import Answer
from tilewright.service.operations.demand.demand import count_unmet
from tilewright.service.operations.views.attention_rows import STAND_IN
from tilewright.service.operations.views.cells import CellStatus, has_status, known_cells
from tilewright.service.store import models


class KernelSummary(Answer):
    """One kernel over all device models; means are geometric, of GPUs where there is one."""

    kernel: str
    tuned: int
    device_models: int
    is_stand_in: bool = Field(description="Whether it has results of the CPU device alone.")
    over_library: float | None = Field(description="The library's time over ours; above 1 ours is faster.")
    compared: int = Field(description="Results with a time of the library.")
    over_default: float | None = Field(description="The default's time over ours.")
    improved: int = Field(description="Results with a time of the default.")
    counts: dict[CellStatus, int]
    requested: int = Field(description="Requested problems that are not tuned.")


def kernel_summaries(session: Session) -> list[KernelSummary]:
    """The kernels with a result, a failed job or a request, the most tuned first."""
    cells, model = known_cells(session, [true()]), models.DeviceModel
    is_stand_in = model.kind == STAND_IN
    counts = [func.count().filter(has_status(cells, status)).label(status.value) for status in CellStatus]
    query = (
        select(
            models.Kernel.name,
            is_stand_in.label("is_stand_in"),
            func.count(cells.c.best_id).label("tuned"),
            func.count(model.id.distinct()).label("device_models"),
            func.exp(func.avg(func.ln(cells.c.ratio))).label("over_library"),
            func.count(cells.c.ratio).label("compared"),
            func.exp(func.avg(func.ln(cells.c.gain))).label("over_default"),
            func.count(cells.c.gain).label("improved"),
            *counts,
        )
        .join(models.Problem, models.Problem.id == cells.c.problem_id)
        .join(models.Kernel, models.Kernel.id == models.Problem.kernel_id)
        .join(model, model.id == cells.c.device_model_id)
        .group_by(models.Kernel.name, is_stand_in)
        .order_by(is_stand_in)
    )
    asked = count_unmet(session)
    found: dict[str, KernelSummary] = {}
    for row in session.execute(query):
        if row.name in found:  # beside those of GPUs a stand-in's results say nothing
            continue
        found[row.name] = KernelSummary(
            kernel=row.name,
            tuned=row.tuned,
            device_models=row.device_models,
            is_stand_in=row.is_stand_in,
            over_library=row.over_library,
            compared=row.compared,
            over_default=row.over_default,
            improved=row.improved,
            counts={status: getattr(row, status.value) for status in CellStatus},
            requested=asked.get(row.name, 0),
        )
    for name in asked.keys() - found.keys():
        found[name] = KernelSummary(
            kernel=name,
            tuned=0,
            device_models=0,
            is_stand_in=False,
            over_library=None,
            compared=0,
            over_default=None,
            improved=0,
            counts=dict.fromkeys(CellStatus, 0),
            requested=asked[name],
        )
    return sorted(found.values(), key=lambda one: (-one.tuned, one.kernel))


class ModelSummary(Answer):
    """One device model: how its results stand beside the library, and how many need attention."""

    device_model: str
    geometric_mean: float | None = Field(
        description="Of the library's time over ours, over the problems that have both; above 1 ours is faster."
    )
    compared: int = Field(description="Problems with a time of the library.")
    gain_over_default: float | None = Field(description="Geometric mean of the default's time over ours.")
    tuned: int
    counts: dict[CellStatus, int]


def summary_of(pairs: CTE) -> ScalarSelect[Any]:
    """A summary for each device model that occurs in these cells, as JSON; null if there are no cells."""
    model = models.DeviceModel
    counts = [x for status in CellStatus for x in (status.value, func.count().filter(has_status(pairs, status)))]
    line = (
        select(
            model.slug.label("device_model"),
            func.exp(func.avg(func.ln(pairs.c.ratio))).label("geometric_mean"),
            func.count(pairs.c.ratio).label("compared"),
            func.exp(func.avg(func.ln(pairs.c.gain))).label("gain_over_default"),
            func.count(pairs.c.best_id).label("tuned"),
            func.jsonb_build_object(*counts).label("counts"),
        )
        .join(pairs, pairs.c.device_model_id == model.id)
        .group_by(model.slug)
        .subquery("line")
    )
    row = func.to_jsonb(line.table_valued())
    return select(func.jsonb_agg(aggregate_order_by(row, line.c.device_model))).scalar_subquery()


def summaries(found: Sequence[Mapping[str, Any]] | None) -> list[ModelSummary]:
    """The summaries from the rows that `summary_of` read."""
    return [
        ModelSummary(**{**line, "counts": {status: line["counts"][status.value] for status in CellStatus}})
        for line in found or ()
    ]
