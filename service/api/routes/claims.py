"""Claims: clients report configurations that gave wrong results, or their times; workers verify and measure."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, listed
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import PageQuery
from tilewright.service.api.problem_types import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.claims import claims
from tilewright.service.operations.claims.claims import ClaimAnswer
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.requests import ClaimRequest
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1/claims", tags=["best"])

ClaimId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A claim's id.", examples=[1])]


class ClaimQuery(PageQuery):
    """The filter of claims."""

    state: Literal["open", "confirmed", "refuted", "measured", "unverified"] | None = Field(
        default=None, description="Only claims in this state.", examples=["confirmed"]
    )


CREATED: Responses = {
    202: {
        "description": "A new claim, whose verification is queued.",
        "headers": {"Location": {"description": "The claim's address.", "schema": {"type": "string"}}},
    },
    200: {"description": "A claim that says the same: open, confirmed, or refuted lately.", "model": ClaimAnswer},
}


@router.post(
    "",
    operation_id="report_claim",
    status_code=202,
    response_model=ClaimAnswer,
    responses=CREATED | refuses(INVALID, CONFLICT, UNAVAILABLE),
)
def report_claim(request: ClaimRequest) -> Response:
    """Report that a configuration gave wrong results. A worker of the device model verifies it.

    Only what the worker finds has consequences: a wrong configuration is withdrawn and answered no more. With `times`
    nothing was wrong, and a worker searches the problem, behind everything that somebody has asked for.
    """
    with transaction() as session:
        claim, is_new = claims.report_claim(session, request)
    return Response(
        claim.model_dump_json(),
        status_code=202 if is_new else 200,
        media_type="application/json",
        headers={"Location": f"/v1/claims/{claim.id}"},
    )


@router.get(
    "", operation_id="list_claims", response_model=Page[ClaimAnswer], responses=CSV_TOO | refuses(INVALID, UNAVAILABLE)
)
def list_claims(request: Request, query: Annotated[ClaimQuery, Query()]) -> Page[ClaimAnswer] | Response:
    """Claims, newest first."""
    return listed(request, query, lambda page: committed(claims.claims)(**page.model_dump(exclude={"format"})))


@router.get("/{claim_id}", operation_id="get_claim", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_claim(claim_id: ClaimId) -> ClaimAnswer:
    """One claim, and what came of it."""
    return committed(claims.claim_of)(claim_id)
