"""Routes of what needs attention: stale, regressed, improvable and slower results, failing jobs, untuned requests."""

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
from tilewright.service.operations.demand.demand import TunedDemand
from tilewright.service.operations.requests import DemandJobs
from tilewright.service.operations.transaction import committed, transaction
from tilewright.service.operations.views.attention import (
    AttentionFilter,
    AttentionPage,
    attention,
    tune_attention,
)
from tilewright.service.operations.views.attention_kind import AttentionKind

router = APIRouter(prefix="/v1", tags=["attention"])

KIND = "Only what has this reason."
LeastSlowdown = Annotated[
    float | None,
    Field(ge=0, le=10, description="Regressions by a smaller share of the time before are left out.", examples=[0.05]),
]


class AttentionQuery(ResultQuery):
    """The filter and the page of the list."""

    kind: AttentionKind | None = Field(default=None, description=KIND)
    least_slowdown: LeastSlowdown = None


class TopQuery(QueryNames):
    """The part of the list that a request tunes."""

    top: int = Field(default=10, ge=1, le=100, description="How many, the most worthwhile first.", examples=[10])
    kind: AttentionKind | None = Field(default=None, description=KIND)
    kernel: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["kernel"]])
    device_model: str | None = Field(default=None, max_length=128, examples=[EXAMPLE["device_model"]])
    least_slowdown: LeastSlowdown = None


@router.get(
    "/attention",
    operation_id="list_attention",
    response_model=AttentionPage,
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_attention(request: Request, query: Annotated[AttentionQuery, Query()]) -> AttentionPage | Response:
    """Problems that need attention, each with its reasons, sorted by requests times the share of time that may be
    saved.
    """
    chosen = AttentionFilter(query.kind, query.kernel, query.device_model, query.least_slowdown)
    memory = request.app.state.best
    return listed(
        request, query, lambda page: committed(attention)(chosen, limit=page.limit, cursor=page.cursor, known=memory)
    )


@router.post(
    "/attention:tune",
    operation_id="tune_attention",
    status_code=202,
    responses=refuses(INVALID, CONFLICT, BY_ERROR[CeilingError], UNAVAILABLE),
)
def tune(http: Request, request: DemandJobs, query: Annotated[TopQuery, Query()]) -> Page[TunedDemand]:
    """Queue a job for each of the most worthwhile that a running worker serves. Sent again, it joins the open jobs."""
    with transaction() as session:
        chosen = AttentionFilter(query.kind, query.kernel, query.device_model, query.least_slowdown)
        rows = tune_attention(session, request, chosen, top=query.top, known=http.app.state.best)
    return Page(items=rows)
