"""Schedules: create, list, show, change, pause, resume, run now, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from tilewright.service.api.csv_pages import CSV_TOO, listed, rendered
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import PageQuery, ScheduleQuery
from tilewright.service.api.problem_types import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import FireAnswer, JobAnswer, Page, ScheduleAnswer
from tilewright.service.operations.pages import MAX_ROW_ID
from tilewright.service.operations.requests import ScheduleChanges, ScheduleRequest
from tilewright.service.operations.schedules import schedules
from tilewright.service.operations.staleness import comparisons as staleness_comparisons
from tilewright.service.operations.staleness.comparisons import ComparisonAnswer
from tilewright.service.operations.staleness.verdict import Verdict
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

ScheduleId = Annotated[int, Path(ge=1, le=MAX_ROW_ID, description="A schedule's id.", examples=[1])]

_LOCATION = {"Location": {"description": "The schedule's address.", "schema": {"type": "string"}}}
CREATED: Responses = {201: {"description": "The schedule; sent again, the same one.", "headers": _LOCATION}}


class ComparisonQuery(PageQuery):
    """The filter of comparisons."""

    verdict: Verdict | None = Field(default=None, description="Only comparisons with this verdict.", examples=["worse"])


OF_ONE = refuses(INVALID, NOT_FOUND, UNAVAILABLE)


@router.post(
    "",
    operation_id="create_schedule",
    status_code=201,
    responses=CREATED | refuses(INVALID, CONFLICT, UNAVAILABLE),
)
def create_schedule(request: ScheduleRequest, response: Response) -> ScheduleAnswer:
    """Tune problems again and again, at the times of a cron expression in a time zone."""
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
def list_schedules(request: Request, query: Annotated[ScheduleQuery, Query()]) -> Page[ScheduleAnswer] | Response:
    """Every schedule, by name, with its next five due times."""
    with transaction() as session:
        rows = Page(items=schedules.schedules(session, query.project))
    return rendered(request, rows, query.format)


@router.get("/{schedule_id}", operation_id="get_schedule", responses=OF_ONE)
def get_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """One schedule, its next five due times, and the outcome of the last one."""
    return committed(schedules.schedule)(schedule_id)


@router.put(
    "/{schedule_id}",
    operation_id="change_schedule",
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def change_schedule(schedule_id: ScheduleId, request: ScheduleRequest) -> ScheduleAnswer:
    """Replace the whole schedule. Its jobs go on unchanged, and no due time fires twice."""
    return committed(schedules.change_schedule)(schedule_id, request)


@router.patch(
    "/{schedule_id}",
    operation_id="edit_schedule",
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def edit_schedule(schedule_id: ScheduleId, changes: ScheduleChanges) -> ScheduleAnswer:
    """Change the given fields and keep the others. Lists and the budget are replaced as a whole."""
    return committed(schedules.edit_schedule)(schedule_id, changes)


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
    """The outcome of each due time of the last seven days, newest first."""
    return listed(
        request, query, lambda page: committed(schedules.fires)(schedule_id, limit=page.limit, cursor=page.cursor)
    )


@router.get(
    "/{schedule_id}/comparisons",
    operation_id="list_schedule_comparisons",
    response_model=Page[ComparisonAnswer],
    responses=CSV_TOO | OF_ONE,
)
def list_schedule_comparisons(
    request: Request, schedule_id: ScheduleId, query: Annotated[ComparisonQuery, Query()]
) -> Page[ComparisonAnswer] | Response:
    """The best before and after each of the schedule's jobs: better, same, worse or missing; newest first."""
    return listed(
        request,
        query,
        lambda page: committed(staleness_comparisons.comparisons)(
            schedule_id, verdict=page.verdict, limit=page.limit, cursor=page.cursor
        ),
    )


@router.post("/{schedule_id}/pause", operation_id="pause_schedule", responses=OF_ONE)
def pause_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """Pause the schedule. Open jobs go on."""
    return committed(schedules.set_enabled)(schedule_id, enabled=False)


@router.post("/{schedule_id}/resume", operation_id="resume_schedule", responses=OF_ONE)
def resume_schedule(schedule_id: ScheduleId) -> ScheduleAnswer:
    """Resume the schedule from the next due time on; due times during the pause are skipped."""
    return committed(schedules.set_enabled)(schedule_id, enabled=True)


@router.post(
    "/{schedule_id}/run",
    operation_id="run_schedule",
    status_code=202,
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def run_schedule(schedule_id: ScheduleId) -> Page[JobAnswer]:
    """Queue the schedule's jobs now, even if it is paused or has open jobs."""
    with transaction() as session:
        return Page(items=schedules.run_now(session, schedule_id))
