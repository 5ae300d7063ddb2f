"""The pages of jobs: the list, and one job with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views, words
from tilewright.service.dashboard.charts.small import Curve
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_JOBS = 50
SHOWN_IN_SHORT = 8
SHOWN_TRIALS = 25
REFRESH_SECONDS = 5
"""For browsers without JavaScript, while something may change."""

STATES = ("queued", "running", "done", "failed", "cancelled")


def refresh_s(shown: Sequence[JobAnswer]) -> int | None:
    """How soon a page with these jobs should be reloaded; None if nothing can change."""
    return REFRESH_SECONDS if any(views.is_open(job) for job in shown) else None


def in_short(newest: Sequence[JobAnswer]) -> dict[str, Any]:
    """The values of a short table of jobs on another page; it refreshes itself from the page of jobs."""
    return {
        "jobs": [views.job_line(job) for job in newest],
        "jobs_source": f"/jobs?limit={SHOWN_IN_SHORT}",
        "jobs_every_s": 2 if refresh_s(newest) else 10,
    }


@router.get("/jobs")
def job_list(
    state: Annotated[str | None, Query(max_length=16)] = None,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = SHOWN_JOBS,
) -> HTMLResponse:
    """Jobs, newest first."""
    with transaction() as session:
        found = jobs.jobs(session, state=state or None, limit=limit, cursor=cursor)
    state = state or None
    kept = {"state": state, "limit": limit if limit != SHOWN_JOBS else None}
    return page(
        "jobs.html",
        refresh_s=refresh_s(found.items),
        state=state,
        states=STATES,
        data=address("/v1/jobs", kept | {"cursor": cursor}),
        first=address("/jobs", kept) if cursor else None,
        next=address("/jobs", kept | {"cursor": found.next_cursor}) if found.next_cursor else None,
        **in_short(found.items) | {"jobs_source": address("/jobs", kept | {"cursor": cursor})},
    )


@router.get("/jobs/{job_id}")
def job_page(request: Request, job_id: UUID) -> HTMLResponse:
    """One job: progress, best so far, newest trials; later its result."""
    with transaction() as session:
        job = jobs.job(session, job_id)
        summary = studies.job_trials(session, job_id)
        newest = studies.shown_trials(session, job_id=job_id, order="newest", limit=SHOWN_TRIALS)
        fastest = studies.shown_trials(session, job_id=job_id, order="fastest", limit=1)
    best = next((trial for trial in fastest if trial.time_ms is not None), None)
    return page(
        "job.html",
        refresh_s=refresh_s([job]),
        job=job,
        line=views.job_line(job),
        budget=views.budget_text(job.budget),
        is_open=views.is_open(job),
        can_tune=may(request, Scope.TUNE),
        total=summary.total,
        outcomes=views.outcome_counts(summary.outcomes),
        curve=Curve.of(summary.improvements, summary.total),
        best=best,
        best_values=words.configuration(job.problem.kernel, best.variant, best.configuration) if best else None,
        trials=views.trial_lines(job.problem.kernel, newest),
    )
