"""The page of demand: requested problems that are not tuned, how they are answered meanwhile, buttons to tune them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from tilewright.service.dashboard import views
from tilewright.service.dashboard.matrix_view import MATCHES
from tilewright.service.dashboard.rendering import PageRoute, address, may, own_url, page
from tilewright.service.dashboard.tables import PageNumber, Sort, TableOrder
from tilewright.service.operations import DEFAULT_PRIORITY, registry
from tilewright.service.operations.answers import Match
from tilewright.service.operations.best_cache.memory import BestMemory
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.demand.answers import AnsweredDemand, answered
from tilewright.service.operations.demand.demand import ORDERS, shown_demand
from tilewright.service.operations.registry import catalogue
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN = 25
TOP = 10
TRIALS = 100

MOST_ANSWERED = 500
"""The most requested rows that are sorted by how they are answered, which is not stored."""

COLUMNS = {**ORDERS, "answered": False}

Name = Annotated[str | None, Query(max_length=128)]


@router.get("/demand")
def demand_list(
    request: Request,
    kernel: Name = None,
    device_model: Name = None,
    sort: Sort = None,
    number: PageNumber = 1,
) -> HTMLResponse:
    """Requested problems that are not tuned, the most requested first, with the answers given meanwhile."""
    filters = {"kernel": kernel or None, "device_model": device_model or None}
    order = TableOrder.of(sort, COLUMNS, lambda text: address("/demand", filters | {"sort": text}))
    kept = filters | {"sort": order.text if sort else None}

    def at(page_number: int) -> str:
        return address("/demand", kept | {"page": page_number if page_number > 1 else None})

    with transaction() as session:
        models = registry.device_models(session)
        answers = _rows(session, request.app.state.best, filters, order, (number - 1) * SHOWN)
    return page(
        "demand.html",
        chosen=filters,
        is_filtered=any(filters.values()),
        kernels=sorted(catalogue().by_name),
        models=models,
        rows=[demand_line(row) for row in answers[:SHOWN]],
        order=order,
        sort=kept["sort"],
        most_answered=MOST_ANSWERED,
        base_url=own_url(request),
        can_tune=may(request, Scope.TUNE),
        top=TOP,
        trials=TRIALS,
        priority=DEFAULT_PRIORITY,
        source=at(number),
        data=address("/v1/demand", filters),
        first=at(1) if number > 1 else None,
        next=at(number + 1) if len(answers) > SHOWN else None,
    )


def _rows(
    session: Session, memory: BestMemory, filters: Mapping[str, Any], order: TableOrder, skip: int
) -> list[AnsweredDemand]:
    """The rows of one page, and one more if there is a next page."""
    if order.column != "answered":
        rows = shown_demand(session, **filters, order=order.text, limit=SHOWN + 1, skip=skip)
        return answered(session, rows, memory)
    rows = shown_demand(session, **filters, order="-requests", limit=MOST_ANSWERED)
    matches = list(Match)
    sorted_rows = order.sorted(
        answered(session, rows, memory), lambda row: matches.index(row.match) if row.match else len(matches)
    )
    return sorted_rows[skip : skip + SHOWN + 1]


def demand_line(row: AnsweredDemand) -> dict[str, Any]:
    """One row of the table."""
    requested = row.demand
    problem = requested.problem
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
        "pending": row.pending,
        "job_path": f"/jobs/{row.job_id}" if row.job_id else None,
        "ask_path": views.ask_path(problem, requested.device_model),
        "body": problem.model_dump(mode="json") | {"device_model": requested.device_model},
    }
