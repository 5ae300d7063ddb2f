"""Saved views, and the documentation at /guide: the site that `make docs` builds, or a page that says so."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from tilewright.service import dashboard
from tilewright.service.dashboard.rendering import PageRoute, may, page
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.notes import saved_views

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/views")
def views_page(request: Request, address: Annotated[str | None, Query(max_length=2048)] = None) -> HTMLResponse:
    """Every saved view, and a form that saves the page at `address`."""
    with transaction() as session:
        known = saved_views(session)
    return page("views.html", views=known, address=address or "", can_tune=may(request, Scope.TUNE))


@router.get("/guide")
def guide() -> Response:
    """A redirect to the first page of the documentation; 404 with a remedy where it was not built."""
    if (dashboard.GUIDE / "index.html").is_file():
        return RedirectResponse("/guide/index.html")
    return page("guide.html", status=404)
