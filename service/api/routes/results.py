"""Results: the best configurations as they were measured; which are stale; and their retraction."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, rendered
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import ResultQuery
from tilewright.service.api.problems import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.best import retractions
from tilewright.service.operations.best.results import ResultAnswer, result, results
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.requests import RetractionRequest
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1/results", tags=["best"])

ResultId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A result's id.", examples=[1])]


class ResultsQuery(ResultQuery):
    """Which results."""

    stale: bool | None = Field(default=None, description="Only those that are stale, or are not.", examples=[True])
    improvable: bool | None = Field(
        default=None, description="Only those that are improvable, or are not.", examples=[True]
    )
    retracted: bool = Field(default=False, description="Retracted ones instead of those that stand.")


@router.get(
    "",
    operation_id="list_results",
    response_model=Page[ResultAnswer],
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_results(request: Request, query: Annotated[ResultsQuery, Query()]) -> Page[ResultAnswer] | Response:
    """The current best configurations as they were measured, newest first."""
    with transaction() as session:
        found = results(session, **query.model_dump(exclude={"format"}))
    return rendered(request, found, query.format)


@router.get("/{result_id}", operation_id="get_result", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_result(result_id: ResultId) -> ResultAnswer:
    """One result, also one that was superseded or retracted."""
    with transaction() as session:
        return result(session, result_id)


@router.post(
    "/{result_id}/retract",
    operation_id="retract_result",
    responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def retract_result(result_id: ResultId, request: RetractionRequest) -> ResultAnswer:
    """Withdraw a result, with a reason. The study's next best takes its place, where it has one.

    Asked again, it changes nothing. What was retracted stays on record and is never published from its trial again.
    """
    with transaction() as session:
        return retractions.retract(session, result_id, request.reason)
