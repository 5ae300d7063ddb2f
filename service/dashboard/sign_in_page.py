"""The page on which a browser shows its key."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard.rendering import PageRoute, page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")


@router.get("/sign-in")
def sign_in(wanted: Annotated[str, Query(alias="next", max_length=2048)] = "/") -> HTMLResponse:
    """The form; afterwards the browser goes to `next`, which must be an address of this server."""
    return page("sign_in.html", next=wanted if _OWN_PATH.fullmatch(wanted) else "/")
