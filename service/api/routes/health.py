"""Health and readiness of this process, and the meaning of problem types."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from tilewright.service.api import problems
from tilewright.service.api.openapi import refuses
from tilewright.service.api.problem_types import NOT_FOUND, NOT_READY, all_types
from tilewright.service.errors import NotFoundError
from tilewright.service.operations.fleet.fleet import what_is_missing

router = APIRouter(tags=["health"])


class HealthAnswer(BaseModel):
    """States that the process answers."""

    status: Literal["ok"] = "ok"


class ProblemTypeAnswer(BaseModel):
    """The meaning of a problem type, and its remedy."""

    type: str
    title: str
    status: int
    remedy: str


@router.get("/health", operation_id="get_health")
async def get_health() -> HealthAnswer:
    """Whether this process is alive; nothing else is checked."""
    return HealthAnswer()


@router.get("/ready", operation_id="get_readiness", response_model=HealthAnswer, responses=refuses(NOT_READY))
def get_readiness(request: Request) -> HealthAnswer | JSONResponse:
    """Whether the database answers and is at this version, and recently queried results are in memory."""
    missing = what_is_missing() or request.app.state.best.what_is_missing()
    if missing is not None:
        request_id = str(request.scope.get("tilewright.request_id", ""))
        return problems.response(NOT_READY, missing, request_id=request_id or None)
    return HealthAnswer()


@router.get("/problems/{name}", operation_id="get_problem_type", responses=refuses(NOT_FOUND))
async def get_problem_type(
    name: Annotated[str, Path(pattern="^[a-z]+(-[a-z]+)*$", max_length=64, examples=["not-found"])],
) -> ProblemTypeAnswer:
    """The meaning of the `type` of a problem document."""
    known = {kind.name: kind for kind in all_types()}
    if name not in known:
        raise NotFoundError("problem type", name, list(known))
    kind = known[name]
    return ProblemTypeAnswer(type=kind.uri, title=kind.title, status=kind.status, remedy=kind.remedy)
