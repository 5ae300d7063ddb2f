"""The page of demand: requested problems that are not tuned, how they are answered meanwhile, buttons to tune them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views, words
from tilewright.service.dashboard.rendering import PageRoute, address, may, own_url, page
from tilewright.service.operations import registry
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.demand.answers import AnsweredDemand, answered
from tilewright.service.operations.demand.demand import demand
from tilewright.service.operations.parse import format_shape
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.requests import DEFAULT_PRIORITY
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN = 25
TOP = 10
TRIALS = 100

MATCHES = {
    "predicted": ("≈", "predicted from trials of other shapes"),
    "nearest": ("→", "configuration of the nearest tuned shape"),
    "transferred": ("⇄", "configuration of a similar device model"),
    "estimated": ("~", "configuration of a far shape, by estimate"),
    "default": ("○", "the kernel's default: no related result is known"),
    "exact": ("✓", "tuned in the meantime"),
}
"""For each kind of answer its mark, as on the page `ask`, and where the configuration comes from."""

Name = Annotated[str | None, Query(max_length=128)]


@router.get("/demand")
def demand_list(
    request: Request,
    kernel: Name = None,
    device_model: Name = None,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """The most requested problems that are not tuned, with the answers given meanwhile."""
    filters = {"kernel": kernel or None, "device_model": device_model or None}
    with transaction() as session:
        models = registry.device_models(session)
        ranked = demand(session, **filters, limit=SHOWN, cursor=cursor or None)
        answers = answered(session, ranked.items, request.app.state.best)
    return page(
        "demand.html",
        chosen=filters,
        is_filtered=any(filters.values()),
        kernels=sorted(catalogue().by_name),
        models=models,
        rows=[demand_line(row) for row in answers],
        base_url=own_url(request),
        can_tune=may(request, Scope.TUNE),
        top=TOP,
        trials=TRIALS,
        priority=DEFAULT_PRIORITY,
        source=address("/demand", filters | {"cursor": cursor}),
        data=address("/v1/demand", filters | {"cursor": cursor}),
        first=address("/demand", filters) if cursor else None,
        next=address("/demand", filters | {"cursor": ranked.next_cursor}) if ranked.next_cursor else None,
    )


def demand_line(row: AnsweredDemand) -> dict[str, Any]:
    """One row of the table."""
    requested = row.demand
    problem = requested.problem
    query = {
        "kernel": problem.kernel,
        "device_model": requested.device_model,
        "shape": format_shape(words.ordered_shape(problem)),
        "dtype": problem.dtype,
        "options": words.unusual_options(problem),
    }
    return {
        "problem": problem,
        "device_model": requested.device_model,
        "count": requested.count,
        "first_asked_at": requested.first_asked_at,
        "last_asked_at": requested.last_asked_at,
        "match": row.match,
        "mark": MATCHES[row.match][0] if row.match else None,
        "meaning": MATCHES[row.match][1] if row.match else None,
        "expected_loss": row.expected_loss,
        "refused": row.refused,
        "job_path": f"/jobs/{row.job_id}" if row.job_id else None,
        "ask_path": views.plain_address("/ask", query),
        "body": problem.model_dump(mode="json") | {"device_model": requested.device_model},
    }
