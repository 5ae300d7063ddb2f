"""The page of a family's table: time over the axis, its ranges and what was measured."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.charts.table import table_chart
from tilewright.service.dashboard.rendering import PageRoute, may, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.best.tables import table
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/tables/{table_id}")
def family(request: Request, table_id: int) -> HTMLResponse:
    """One table."""
    if not 0 < table_id <= MAX_ROW_ID:
        raise NotFoundError("table", str(table_id))
    with transaction() as session:
        found = table(session, table_id)
    ranges = [
        {
            "range": one,
            "configuration": formatting.configuration(found.kernel, one.variant, one.configuration),
            "time_ms": [one.times_ms[size] for size in sorted(one.times_ms, key=int)],
        }
        for one in found.ranges
    ]
    return page(
        "family.html",
        table=found,
        chart=table_chart(found),
        ranges=ranges,
        data=views.table_path(found),
        can_tune=may(request, Scope.TUNE),
        again=found.model_dump(mode="json", include={"kernel", "shape", "dtype", "options", "device_model"}),
        command=tune_command(found, found.device_model),
    )
