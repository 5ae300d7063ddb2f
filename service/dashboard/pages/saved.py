"""The page of saved views: names and the addresses that they lead to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

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
