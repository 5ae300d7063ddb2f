"""The page on which a browser shows its key, and ends its session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard.rendering import PageRoute, page
from tilewright.service.operations.access import sessions
from tilewright.service.operations.access.sessions import SignInProblem
from tilewright.service.operations.caller import Caller
from tilewright.service.operations.transaction import transaction

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_SENTENCES = {
    SignInProblem.WRONG_KEY: "No key in force has this token.",
    SignInProblem.TOO_OFTEN: "Too many attempts came from your address. Wait a minute and try again.",
}


@router.get("/sign-in")
def sign_in(
    request: Request,
    wanted: Annotated[str, Query(alias="next", max_length=2048)] = "/",
    problem: SignInProblem | None = None,
) -> HTMLResponse:
    """The form, and whose session the browser has; afterwards it goes to `next`, an address of this server."""
    said = _SENTENCES[problem] if problem else ""
    shown = page("sign_in.html", next=sessions.own_path(wanted), caller=_caller(request), problem=said)
    # Under `no-referrer` a browser sends its forms with `Origin: null`, which is nobody's.
    shown.headers["Referrer-Policy"] = "same-origin"
    return shown


def _caller(request: Request) -> Caller | None:
    """Whose session the browser's cookie names; this page is open, so the door has not asked."""
    token = request.cookies.get(sessions.COOKIE)
    if not token:
        return None
    with transaction() as session:
        found = sessions.find_session(session, token)
    return found.caller if found else None
