"""Results: the best configurations as measured; whether they are stale; retracting one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, listed
from tilewright.service.api.examples import FIELD_EXAMPLES as EXAMPLE
from tilewright.service.api.openapi import refuses
from tilewright.service.api.parameters import ResultQuery
from tilewright.service.api.problem_types import INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import Page
from tilewright.service.operations.best import retractions
from tilewright.service.operations.best.results import ResultAnswer, result, results
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.parse import parse_selection
from tilewright.service.operations.requests import RetractionRequest
from tilewright.service.operations.transaction import committed

router = APIRouter(prefix="/v1/results", tags=["best"])

ResultId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A result's id.", examples=[1])]


class ResultsQuery(ResultQuery):
    """The filter of results."""

    stale: bool | None = Field(
        default=None, description="true: only stale results; false: only the others.", examples=[True]
    )
    improvable: bool | None = Field(
        default=None, description="true: only improvable results; false: only the others.", examples=[True]
    )
    retracted: bool = Field(default=False, description="Retracted results instead of current ones.")
    variant: str | None = Field(default=None, max_length=64, examples=[EXAMPLE["variant"]])
    select: str | None = Field(
        default=None,
        max_length=1024,
        description="Only results with these values of parameters, each one value or LOW..HIGH; `time` is in ms.",
        examples=["TILE_M=128,STAGES=3..4,time=0..1"],
    )


@router.get(
    "",
    operation_id="list_results",
    response_model=Page[ResultAnswer],
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_results(request: Request, query: Annotated[ResultsQuery, Query()]) -> Page[ResultAnswer] | Response:
    """The current best configurations as they were measured, newest first."""
    selection = parse_selection(query.select)
    return listed(
        request,
        query,
        lambda page: committed(results)(**page.model_dump(exclude={"format", "select"}), selection=selection),
    )


@router.get("/{result_id}", operation_id="get_result", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_result(result_id: ResultId) -> ResultAnswer:
    """One result, even if it was superseded or retracted."""
    return committed(result)(result_id)


@router.post(
    "/{result_id}/retract",
    operation_id="retract_result",
    responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def retract_result(result_id: ResultId, request: RetractionRequest) -> ResultAnswer:
    """Retract a result, with a reason. The study's next best, if there is one, takes its place.

    It needs the key whose job found it, or one of scope `admin`; others report a claim. Sent again, it changes nothing.
    A retracted result stays on record, and its trial is never published again.
    """
    return committed(retractions.retract)(result_id, request.reason)
