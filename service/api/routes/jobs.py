"""Jobs: request, list, show, follow, cancel."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from tilewright.service.api.csv_pages import CSV_TOO, listed
from tilewright.service.api.event_stream import MEDIA_TYPE, Streams
from tilewright.service.api.middleware import access
from tilewright.service.api.openapi import Responses, refuses
from tilewright.service.api.parameters import IdempotencyKey, JobId, JobQuery, LastEventId, PageQuery
from tilewright.service.api.problem_types import CONFLICT, INVALID, NOT_FOUND, UNAVAILABLE
from tilewright.service.operations.answers import JobAnswer, Page, TrialAnswer, TunedFor
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs.request import dry_run, request_job
from tilewright.service.operations.requests import JobRequest, RetryRequest
from tilewright.service.operations.studies import retries
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class DryRunAnswer(BaseModel):
    """The job as it would be; nothing was stored."""

    problem: TunedFor
    device_model: str
    space_size: int = Field(description="Feasible configurations.")
    space_by_variant: dict[str, int]
    trials: int = Field(description="Trials that the budget and the space allow.")
    estimated_seconds: float | None = Field(
        description="From earlier trials of this kernel on that device model; null if there are none."
    )


_LOCATION = {"Location": {"description": "The job's address.", "schema": {"type": "string"}}}
CREATED: Responses = {
    202: {"description": "A new job, queued.", "headers": _LOCATION},
    200: {
        "description": "An open job that does the same already, the job of this Idempotency-Key, or a dry run.",
        "model": JobAnswer | DryRunAnswer,
    },
}
EVENT = {
    "type": "object",
    "title": "One event",
    "properties": {
        "event": {"enum": ["trial", "state"]},
        "id": {"type": "string", "description": "Send it as `Last-Event-ID` to resume the stream after this event."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}

FOLLOWED: Responses = {
    200: {
        "description": "Server-sent events: `trial` (a TrialAnswer), `state` (a JobAnswer); ends with the job.",
        "content": {MEDIA_TYPE: {"schema": EVENT}},
    },
    204: {"description": "The job has ended and every event was sent: do not connect again."},
}


@router.post(
    "",
    operation_id="create_job",
    status_code=202,
    response_model=JobAnswer,
    responses=CREATED | refuses(INVALID, CONFLICT, UNAVAILABLE),
)
def create_job(request: JobRequest, idempotency_key: IdempotencyKey = None) -> Response:
    """Request tuning of one problem. Identical open jobs are joined; `dry_run` stores nothing."""
    if request.dry_run:
        with transaction() as session:
            return JSONResponse(dry_run(session, request))
    with transaction() as session:
        job, is_new = request_job(session, request, idempotency_key=idempotency_key)
    return Response(
        job.model_dump_json(),
        status_code=202 if is_new else 200,
        media_type="application/json",
        headers={"Location": f"/v1/jobs/{job.id}"},
    )


@router.get(
    "", operation_id="list_jobs", response_model=Page[JobAnswer], responses=CSV_TOO | refuses(INVALID, UNAVAILABLE)
)
def list_jobs(request: Request, query: Annotated[JobQuery, Query()]) -> Page[JobAnswer] | Response:
    """Jobs, newest first."""
    return listed(request, query, lambda page: committed(jobs.jobs)(**page.model_dump(exclude={"format"})))


@router.get("/{job_id}", operation_id="get_job", responses=refuses(INVALID, NOT_FOUND, UNAVAILABLE))
def get_job(job_id: JobId) -> JobAnswer:
    """One job as it stands."""
    return committed(jobs.job)(job_id)


@router.get(
    "/{job_id}/trials",
    operation_id="list_job_trials",
    response_model=Page[TrialAnswer],
    responses=CSV_TOO | refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
def list_job_trials(
    request: Request, job_id: JobId, query: Annotated[PageQuery, Query()]
) -> Page[TrialAnswer] | Response:
    """The job's trials, in the order in which they were recorded."""
    return listed(
        request, query, lambda page: committed(jobs.trials)(job_id=job_id, limit=page.limit, cursor=page.cursor)
    )


@router.get(
    "/{job_id}/events",
    operation_id="follow_job",
    response_class=StreamingResponse,
    responses=FOLLOWED | refuses(INVALID, NOT_FOUND, UNAVAILABLE),
)
async def follow_job(request: Request, job_id: JobId, last_event_id: LastEventId = None) -> Response:
    """Every trial and change of state as it happens; resumes after `Last-Event-ID`."""
    streams: Streams = request.app.state.streams
    caller, is_still_let_in = request.scope["tilewright.caller"], partial(access.is_still_let_in, request.scope)
    return await streams.follow(job_id, last_event_id or 0, caller, is_still_let_in)


@router.post(
    "/{job_id}/retries",
    operation_id="retry_trials",
    status_code=202,
    responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE),
)
def retry_trials(job_id: JobId, wanted: RetryRequest) -> JobAnswer:
    """Try the failed trials of this job's study again, or one of any outcome but measured: a new job."""
    return committed(retries.retry_trials)(job_id, wanted.trial)


@router.post(
    "/{job_id}/cancel", operation_id="cancel_job", responses=refuses(INVALID, NOT_FOUND, CONFLICT, UNAVAILABLE)
)
def cancel_job(job_id: JobId) -> JobAnswer:
    """Stop the job after its running trial; a queued job stops at once."""
    return committed(jobs.cancel_job)(job_id)
