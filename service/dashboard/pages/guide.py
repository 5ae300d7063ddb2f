"""The documentation at /guide: the site that `make docs` builds, or a page that says so."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from tilewright.service import dashboard
from tilewright.service.dashboard.rendering import PageRoute, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/guide")
def guide() -> Response:
    """A redirect to the first page of the documentation; 404 with a remedy where it was not built."""
    if (dashboard.GUIDE / "index.html").is_file():
        return RedirectResponse("/guide/index.html")
    return page("guide.html", status=404)
