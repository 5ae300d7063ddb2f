"""The page that compares a kernel's results on two device models, in two environments or at two times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.charts.compared import ratio_chart
from tilewright.service.dashboard.charts.small import DotPlot
from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.dashboard.tables import Sort, TableOrder
from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations import registry
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.compared import (
    MISSING_IN_A,
    MISSING_IN_B,
    MOST_ROWS,
    ComparedAnswer,
    ComparedRow,
    Side,
    compared,
    environments,
)
from tilewright.service.operations.views.matrix import newest_kernel

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]
SIGNS = {
    "better": "\N{BLACK UP-POINTING TRIANGLE}",
    "worse": "\N{BLACK DOWN-POINTING TRIANGLE}",
    "same": "=",
    MISSING_IN_A: "\N{EM DASH}",
    MISSING_IN_B: "\N{EM DASH}",
}
SHOWN_ROWS = 100
"""Ten times as many rows take a second to render."""

COLUMNS = {"change": True, "problem": False, "ratio": True, "noise": True, "a": False, "b": False}
VALUES: Mapping[str, Callable[[ComparedRow], Any]] = {
    "change": lambda row: abs(math.log(row.speedup)) if row.speedup else None,
    "problem": lambda row: list(formatting.ordered_shape(row.problem).values()),
    "ratio": lambda row: row.speedup,
    "noise": lambda row: row.threshold,
    "a": lambda row: row.a_ms,
    "b": lambda row: row.b_ms,
}
"""The sortable columns of the table; the largest change comes first."""


def parse_side(field: str, model: str | None, environment: str | None, at: str | None) -> Side | None:
    """One side of the comparison; None while no device model is chosen. Raises InvalidRequestError naming the field."""
    if not model:
        return None
    if environment and not (environment.isdecimal() and int(environment) <= MAX_ROW_ID):
        raise InvalidRequestError(f"{field}_environment", "must be the number of an environment, like 1.")
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError:
        raise InvalidRequestError(f"{field}_at", "must be a time like 2026-11-21T12:00.") from None
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Side(model, int(environment) if environment else None, moment)


@router.get("/compare")
def compare(
    *,
    kernel: Text = None,
    a: Text = None,
    b: Text = None,
    a_environment: Text = None,
    b_environment: Text = None,
    a_at: Text = None,
    b_at: Text = None,
    show: Annotated[Literal["changed", "all"], Query()] = "changed",
    sort: Sort = None,
) -> HTMLResponse:
    """Two device models, environments or times; with both chosen, what changed, problem by problem."""
    first, second = parse_side("a", a, a_environment, a_at), parse_side("b", b, b_environment, b_at)
    query = {"a": a, "b": b, "a_environment": a_environment, "b_environment": b_environment}
    with transaction() as session:
        kernel = kernel or newest_kernel(session) or "gemm"
        models = registry.device_models(session)
        known = environments(session, kernel)
        found = compared(session, kernel, first, second, limit=MOST_ROWS) if first and second else None
    times = {name: side.at.isoformat() for name, side in (("a_at", first), ("b_at", second)) if side and side.at}
    state = {"kernel": kernel, **query, "a_at": a_at, "b_at": b_at, "show": show if show != "changed" else None}
    order = TableOrder.of(sort, COLUMNS, lambda text: address("/compare", state | {"sort": text}))
    return page(
        "compare.html",
        kernel=kernel,
        kernels=sorted(catalogue().by_name),
        models=models,
        environments=known,
        chosen=query | {"a_at": a_at, "b_at": b_at, "sort": order.text if sort else None},
        found=found,
        show=show,
        order=order,
        paths={name: address("/compare", state | {"show": name, "sort": sort}) for name in ("changed", "all")},
        data_rows=MOST_ROWS,
        shown_rows=SHOWN_ROWS,
        data=address(f"/v1/kernels/{kernel}/compare", query | times | {"limit": MOST_ROWS}),
        **(_shown(found, order, is_all=show == "all") if found else {}),
    )


def _shown(found: ComparedAnswer, order: TableOrder, *, is_all: bool) -> dict[str, Any]:
    """The rows that both sides have, changed ones or all, on one axis; apart from them what one side lacks."""
    wanted = {"better", "worse", "same"} if is_all else {"better", "worse"}
    both = order.sorted((row for row in found.items if row.verdict in wanted), VALUES[order.column])
    plot = DotPlot.of([row.interval for row in both[:SHOWN_ROWS] if row.interval])
    return {
        "total": sum(found.counts.values()),
        "both": sum(found.counts.get(verdict, 0) for verdict in ("better", "same", "worse")),
        "counts": [(SIGNS[verdict], verdict, found.counts.get(verdict, 0)) for verdict in SIGNS],
        "rows": [_line(row, plot) for row in both[:SHOWN_ROWS]],
        "wanted": sum(found.counts.get(verdict, 0) for verdict in wanted),
        "plot": plot,
        "chart": ratio_chart(both[:SHOWN_ROWS]),
        "missing": {
            verdict: [_line(row) for row in found.items if row.verdict == verdict][:SHOWN_ROWS]
            for verdict in (MISSING_IN_A, MISSING_IN_B)
        },
    }


def _line(row: ComparedRow, plot: DotPlot | None = None) -> dict[str, Any]:
    return row.model_dump() | {
        "problem": row.problem,
        "sign": SIGNS[row.verdict],
        "dot": plot.dot(row.speedup, row.interval) if plot and row.speedup and row.interval else None,
    }
