"""The sum of a kernel's results on each device model: the strip above the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field
from sqlalchemy import CTE, ScalarSelect, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from tilewright.service.operations.answers import Answer
from tilewright.service.operations.views.cells import CellStatus, has_status
from tilewright.service.store import models


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
    """A summary for each device model that occurs in these cells, as JSON; null where there is none."""
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
