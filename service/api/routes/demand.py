"""Demand: requested problems that are not tuned yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, listed
from tilewright.service.api.examples import FIELD_EXAMPLES as EXAMPLE
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import Query as QueryNames
from tilewright.service.api.parameters import ResultQuery
from tilewright.service.api.problem_types import BY_ERROR, CONFLICT, INVALID, UNAVAILABLE
from tilewright.service.errors import CeilingError
from tilewright.service.operations.answers import Page
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import DemandAnswer, TunedDemand
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1", tags=["demand"])


class TopQuery(QueryNames):
    """The part of the demand that a request tunes."""

    top: int = Field(
        default=10, ge=1, le=100, description="How many problems, the most requested first.", examples=[10]
    )
    kernel: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["kernel"]])
    device_model: str | None = Field(default=None, max_length=128, examples=[EXAMPLE["device_model"]])


@router.get(
    "/demand",
    operation_id="list_demand",
    response_model=Page[DemandAnswer],
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_demand(request: Request, query: Annotated[ResultQuery, Query()]) -> Page[DemandAnswer] | Response:
    """Requested problems that are not tuned yet, the most requested first.

    Counted in memory and written every two seconds; the latest are kept for each kernel and device model.
    """
    return listed(request, query, lambda page: committed(demand.demand)(**page.model_dump(exclude={"format"})))


@router.post(
    "/demand:tune",
    operation_id="tune_demand",
    status_code=202,
    responses=refuses(INVALID, CONFLICT, BY_ERROR[CeilingError], UNAVAILABLE),
)
def tune_demand(request: DemandJobs, query: Annotated[TopQuery, Query()]) -> Page[TunedDemand]:
    """Queue a job for each of the most requested problems. Sent again, it joins the jobs that are still open."""
    with transaction() as session:
        rows = demand.tune_top(session, request, **query.model_dump())
    return Page(items=rows)
