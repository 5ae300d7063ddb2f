"""The page on which a browser shows its key, and ends its session."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard.rendering import PageRoute, page
from tilewright.service.operations import sessions
from tilewright.service.operations.caller import Caller
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


@router.get("/sign-in")
def sign_in(request: Request, wanted: Annotated[str, Query(alias="next", max_length=2048)] = "/") -> HTMLResponse:
    """The form, and whose session the browser has; afterwards it goes to `next`, an address of this server."""
    return page("sign_in.html", next=wanted if _OWN_PATH.fullmatch(wanted) else "/", caller=_caller(request))


def _caller(request: Request) -> Caller | None:
    """Whose session the browser's cookie names; this page is open, so the door has not asked."""
    token = request.cookies.get(sessions.COOKIE)
    if not token:
        return None
    with transaction() as session:
        found = sessions.find_session(session, token)
    return found.caller if found else None
