"""The pages: read in one transaction, shaped by `views`, rendered by Jinja2. They work without JavaScript."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations import jobs, registry
from tilewright.service.operations.results import results
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False)

SHOWN_RESULTS = 100
SHOWN_JOBS = 15
REFRESH_SECONDS = 5
"""While a job is open; a page that shows nothing moving is left alone."""

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= views.FILTERS


@router.get("/")
def first_page(request: Request) -> HTMLResponse:
    """Device models with their best configurations, and the jobs that run or ran."""
    try:
        with transaction() as session:
            found = results(session, limit=SHOWN_RESULTS)
            recent = jobs.jobs(session, limit=SHOWN_JOBS)
            models = registry.device_models(session)
            devices = registry.devices(session)
    except DatabaseUnavailableError:
        return _page("unavailable.html", status=503, refresh_s=REFRESH_SECONDS)
    base_url = str(request.base_url).rstrip("/")
    return _page(
        "first.html",
        refresh_s=REFRESH_SECONDS if any(views.is_open(job) for job in recent.items) else None,
        sections=views.sections(models, devices, found.items),
        is_cut=found.next_cursor is not None,
        jobs=[views.job_line(job) for job in recent.items],
        curl=views.curl_line(base_url, found.items),
    )


def _page(name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_templates.get_template(name).render(**values), status_code=status)
