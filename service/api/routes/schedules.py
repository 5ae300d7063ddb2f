"""Schedules: create, look, change, pause, resume, run now, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, rendered
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import ListQuery, PageQuery
from tilewright.service.api.problems import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import FireAnswer, JobAnswer, Page, ScheduleAnswer
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.requests import ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer, Verdict
from tilewright.service.operations.transaction import transaction

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

ScheduleId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A schedule's id.", examples=[1])]

_LOCATION = {"Location": {"description": "The schedule's address.", "schema": {"type": "string"}}}
CREATED: Responses = {201: {"description": "The schedule; sent again, the same one.", "headers": _LOCATION}}


class ComparisonQuery(PageQuery):
    """Which comparisons."""

    verdict: Verdict | None = Field(default=None, description="Only those.", examples=["worse"])


OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


@router.post(
    "",
    operation_id="create_schedule",
    status_code=201,
    responses=CREATED | refuses(INVALID, CONFLICT, UNAVAILABLE),
)
def create_schedule(request: ScheduleRequest, response: Response) -> ScheduleAnswer:
    """Tune problems again and again, at the times of a six-field cron expression in a time zone."""
    with transaction() as session:
        made = schedules.create_schedule(session, request)
    response.headers["Location"] = f"/v1/schedules/{made.id}"
    return made


@router.get(
    "",
    operation_id="list_schedules",
    response_model=Page[ScheduleAnswer],
    responses=CSV_TOO | refuses(INVALID, UNAVAILABLE),
)
def list_schedules(request: Request, query: Annotated[ListQuery, Query()]) -> Page[ScheduleAnswer] | Response:
    """Every schedule, by name, with its next five due times."""
    with transaction() as session:
        found = Page(items=schedules.schedules(session))
    return rendered(request, found, query.format)


@router.get("/{schedule_id}", operation_id="get_schedule", responses=OF_ONE)
def get_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """One schedule, its next five due times, and what came of its last."""
    with transaction() as session:
        return schedules.schedule(session, schedule_id)


@router.put(
    "/{schedule_id}",
    operation_id="change_schedule",
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def change_schedule(schedule_id: ScheduleId, request: ScheduleRequest) -> ScheduleAnswer:
    """Replace all that it says. Jobs that it has made go on as they are, and no due time comes twice."""
    with transaction() as session:
        return schedules.change_schedule(session, schedule_id, request)


@router.patch(
    "/{schedule_id}",
    operation_id="edit_schedule",
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def edit_schedule(schedule_id: ScheduleId, changes: ScheduleChanges) -> ScheduleAnswer:
    """Change the named fields and leave the others. Lists and the budget are replaced as a whole."""
    with transaction() as session:
        return schedules.edit_schedule(session, schedule_id, changes)


@router.delete("/{schedule_id}", operation_id="delete_schedule", status_code=204, responses=OF_ONE)
def delete_schedule(schedule_id: ScheduleId) -> None:
    """Remove the schedule. Its jobs stay, and those that are open go on."""
    with transaction() as session:
        schedules.delete_schedule(session, schedule_id)


@router.get(
    "/{schedule_id}/fires",
    operation_id="list_schedule_fires",
    response_model=Page[FireAnswer],
    responses=CSV_TOO | OF_ONE,
)
def list_schedule_fires(
    request: Request, schedule_id: ScheduleId, query: Annotated[PageQuery, Query()]
) -> Page[FireAnswer] | Response:
    """What came of each due time of the last seven days, newest first."""
    with transaction() as session:
        found = schedules.fires(session, schedule_id, limit=query.limit, cursor=query.cursor)
    return rendered(request, found, query.format)


@router.get(
    "/{schedule_id}/comparisons",
    operation_id="list_schedule_comparisons",
    response_model=Page[ComparisonAnswer],
    responses=CSV_TOO | OF_ONE,
)
def list_schedule_comparisons(
    request: Request, schedule_id: ScheduleId, query: Annotated[ComparisonQuery, Query()]
) -> Page[ComparisonAnswer] | Response:
    """The best before each of its jobs against the one after it: better, same, worse, missing; newest first."""
    with transaction() as session:
        found = staleness_comparisons.comparisons(
            session, schedule_id, verdict=query.verdict, limit=query.limit, cursor=query.cursor
        )
    return rendered(request, found, query.format)


@router.post("/{schedule_id}/pause", operation_id="pause_schedule", responses=OF_ONE)
def pause_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """Stop firing. Jobs that are open go on."""
    with transaction() as session:
        return schedules.set_enabled(session, schedule_id, enabled=False)


@router.post("/{schedule_id}/resume", operation_id="resume_schedule", responses=OF_ONE)
def resume_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """Fire again from the next due time on; those of the pause do not fire."""
    with transaction() as session:
        return schedules.set_enabled(session, schedule_id, enabled=True)


@router.post(
    "/{schedule_id}/run",
    operation_id="run_schedule",
    status_code=202,
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def run_schedule(schedule_id: ScheduleId) -> Page[JobAnswer]:
    """Queue its jobs once now, whatever else of it is open, and although it may be paused."""
    with transaction() as session:
        return Page(items=schedules.run_now(session, schedule_id))
