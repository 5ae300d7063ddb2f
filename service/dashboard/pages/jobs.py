"""The pages of jobs: the list, and one job with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import formatting, views
from tilewright.service.dashboard.charts.small import Curve
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.dashboard.tables import PageNumber, Sort, TableOrder
from tilewright.service.operations.answers import JobAnswer
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.jobs.search import ORDERS, ordering
from tilewright.service.operations.studies import studies
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_JOBS = 50
SHOWN_IN_SHORT = 8
SHOWN_TRIALS = 25
REFRESH_SECONDS = 5
"""The reload interval of browsers without JavaScript, while something may change."""

STATES = ("queued", "running", "done", "failed", "cancelled")


def refresh_s(shown: Sequence[JobAnswer]) -> int | None:
    """Seconds until a page with these jobs should be reloaded; None if nothing can change."""
    return REFRESH_SECONDS if any(views.is_open(job) for job in shown) else None


def in_short(request: Request, newest: Sequence[JobAnswer]) -> dict[str, Any]:
    """The values of a short table of jobs on another page, refreshed from the page of jobs."""
    return {
        "order": TableOrder.of(None, ORDERS, lambda text: address("/jobs", {"sort": text})),
        "jobs": [views.job_line(job) for job in newest],
        "can_tune": may(request, Scope.TUNE),
        "jobs_source": f"/jobs?limit={SHOWN_IN_SHORT}",
        "jobs_every_s": 2 if refresh_s(newest) else 10,
    }


@router.get("/jobs")
def job_list(
    request: Request,
    *,
    state: Annotated[str | None, Query(max_length=16)] = None,
    search: Annotated[str | None, Query(max_length=256)] = None,
    sort: Sort = None,
    number: PageNumber = 1,
    limit: Annotated[int, Query(ge=1, le=200)] = SHOWN_JOBS,
) -> HTMLResponse:
    """Jobs, newest first or by any column."""
    state, search = state or None, search or None  # a form sends empty ones
    kept = {"state": state, "search": search, "limit": limit if limit != SHOWN_JOBS else None}
    # The headings of a short list lead to the whole one.
    headed = kept if limit != SHOWN_IN_SHORT else kept | {"limit": None}
    order = TableOrder.of(sort, ORDERS, lambda text: address("/jobs", headed | {"sort": text}))
    sorted_by = {"sort": order.text if sort else None}

    def at(page_number: int) -> str:
        return address("/jobs", kept | sorted_by | {"page": page_number if page_number > 1 else None})

    with transaction() as session:
        by = ordering(order.column, is_descending=order.is_descending)
        found = jobs.shown_jobs(
            session, state=state, search=search, ordering=by, limit=limit + 1, skip=(number - 1) * limit
        )
    return page(
        "jobs.html",
        refresh_s=refresh_s(found),
        state=state,
        states=[(word, address("/jobs", kept | sorted_by | {"state": word})) for word in (None, *STATES)],
        search=search,
        sort=sorted_by["sort"],
        data=address("/v1/jobs", {"state": state, "search": search}),
        first=at(1) if number > 1 else None,
        next=at(number + 1) if len(found) > limit else None,
        **in_short(request, found[:limit]) | {"order": order, "jobs_source": at(number)},
    )


TRIAL_COLUMNS = {"trial": True, **studies.TRIAL_COLUMNS}
"""The newest trial of a job comes first."""


@router.get("/jobs/{job_id}")
def job_page(request: Request, job_id: UUID, *, sort: Sort = None) -> HTMLResponse:
    """One job: progress, best so far, its trials, newest first or by any column; later its result."""
    path = f"/jobs/{job_id}"
    order = TableOrder.of(sort, TRIAL_COLUMNS, lambda text: f"{address(path, {'sort': text})}#trials")
    with transaction() as session:
        job = jobs.job(session, job_id)
        summary = studies.job_trials(session, job_id)
        shown = studies.shown_trials(session, job_id=job_id, order=order.text, limit=SHOWN_TRIALS)
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
        best_values=formatting.configuration(job.problem.kernel, best.variant, best.configuration) if best else None,
        trials=views.trial_lines(job.problem.kernel, shown),
        order=order,
        source=address(path, {"sort": sort}),
    )
