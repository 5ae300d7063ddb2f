"""The history of one problem: its bests over drivers, toolkits and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from tilewright.kernels.errors import InvalidProblemError
from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.charts.history import history_chart
from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.dashboard.snippets import tune_command
from tilewright.service.dashboard.tables import Sort, TableOrder
from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations import registry
from tilewright.service.operations.answers import DeviceModelAnswer
from tilewright.service.operations.best.history import HistoryEntry, changed_problems, history
from tilewright.service.operations.catalog import kernel_named
from tilewright.service.operations.parse import format_shape, parse_options
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.shape_filter import shape_of
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

Text = Annotated[str | None, Query(max_length=512)]
SIGNS = {"better": "\N{BLACK UP-POINTING TRIANGLE}", "worse": "\N{BLACK DOWN-POINTING TRIANGLE}", "same": "="}

COLUMNS = {
    "verified": True,
    "model": False,
    "environment": True,
    "configuration": False,
    "time": False,
    "library": True,
    "previous": True,
}
VALUES: Mapping[str, Callable[[HistoryEntry], Any]] = {
    "verified": lambda entry: entry.verified_at,
    "model": lambda entry: entry.device_model,
    "environment": lambda entry: formatting.environment(entry.environment),
    "configuration": lambda entry: (entry.variant, sorted(entry.configuration.items())),
    "time": lambda entry: entry.time_ms,
    "library": lambda entry: entry.library_ms and entry.library_ms / entry.time_ms,
    "previous": lambda entry: entry.ratio and 1 / entry.ratio,
}
"""The sortable columns of the table; the newest row comes first."""


@router.get("/history")
def history_page(
    *,
    kernel: Annotated[str | None, Query(max_length=64)] = None,
    shape: Text = None,
    dtype: Annotated[str | None, Query(max_length=16)] = None,
    options: Text = None,
    device_model: Text = None,
    sort: Sort = None,
) -> HTMLResponse:
    """A form; with a shape, every best of that problem over drivers, toolkits and sources."""
    chosen = {"kernel": kernel, "shape": shape, "dtype": dtype or "float32", "options": options}
    chosen |= {"device_model": device_model or None}
    shown: dict[str, Any] = {"problem": None, "refusal": None}
    with transaction() as session:
        models = registry.device_models(session)
        if shape:
            try:
                shown |= _shown(session, chosen, models, sort)
            except (InvalidProblemError, InvalidRequestError, NotFoundError) as error:
                if isinstance(error, InvalidRequestError) and error.field == "sort":
                    raise
                shown["refusal"] = error
        changed = [] if shape else changed_problems(session, kernel=kernel or None)
    declared = catalogue().by_name.get(kernel or "gemm")
    return page(
        "history.html",
        status=422 if shown["refusal"] else 200,
        kernels=sorted(catalogue().by_name),
        models=models,
        chosen=chosen,
        dtypes=declared.dtypes if declared else (chosen["dtype"],),
        example=format_shape(dict(declared.example_shape)) if declared else "",
        changed=[(one, views.history_path(one.problem)) for one in changed],
        **shown,
    )


def _shown(
    session: Session, chosen: Mapping[str, str | None], models: Sequence[DeviceModelAnswer], sort: str | None
) -> dict[str, Any]:
    """The history of the chosen problem as the page shows it; raises InvalidRequestError, InvalidProblemError or
    NotFoundError.
    """
    kernel = kernel_named(chosen["kernel"] or "gemm")
    problem = kernel.problem(
        shape_of(chosen["shape"] or "", kernel.axes), chosen["dtype"] or "", parse_options(chosen["options"])
    )
    record = history(session, problem, device_model=chosen["device_model"])
    order = TableOrder.of(sort, COLUMNS, lambda text: address("/history", {**chosen, "sort": text}))
    query = {name: value for name, value in chosen.items() if name != "kernel"}
    current = {entry.device_model: entry for entry in record.items if entry.stands}  # the newest of each
    regressed = [entry for entry in current.values() if entry.verdict == "worse"]
    return {
        "problem": problem,
        "order": order,
        "entries": [_line(entry, kernel.name) for entry in order.sorted(record.items[::-1], VALUES[order.column])],
        "current": {entry.result_id for entry in current.values()},
        "regressed": regressed,
        "chart": history_chart(record.items),
        "command": tune_command(problem, chosen["device_model"] or next((model.slug for model in models), None)),
        "ask": address("/ask", chosen),
        "data": address(f"/v1/kernels/{kernel.name}/history", query),
    }


def _line(entry: HistoryEntry, kernel: str) -> dict[str, Any]:
    return {
        "entry": entry,
        "sign": SIGNS.get(entry.verdict or ""),
        "configuration": formatting.configuration(kernel, entry.variant, entry.configuration),
        "against_library": entry.library_ms / entry.time_ms if entry.library_ms is not None else None,
    }
