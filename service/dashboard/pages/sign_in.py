"""The page to sign in with a key, and to sign out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard.rendering import PageRoute, address, page
from tilewright.service.operations.access import sessions
from tilewright.service.operations.access.sessions import SignInProblem
from tilewright.service.operations.caller import Caller, Scope
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_SENTENCES = {
    SignInProblem.WRONG_KEY: "This key is not valid. It may be mistyped, expired or revoked.",
    SignInProblem.NO_ANSWER: "Your organisation did not say who you are. Try it again.",
    SignInProblem.NO_RIGHTS: "Your account has no rights on this server. Ask whoever runs it.",
    SignInProblem.TOO_OFTEN: "Too many attempts came from your address. Wait a minute and try again.",
}

_ALLOWED = {
    Scope.READ: "look at everything and change nothing",
    Scope.TUNE: "look at everything, start jobs and plan schedules",
    Scope.ADMIN: "do everything, also create keys and import results",
}


@router.get("/sign-in")
def sign_in(
    request: Request,
    next_path: Annotated[str, Query(alias="next", max_length=2048)] = "/",
    problem: SignInProblem | None = None,
) -> HTMLResponse:
    """The form, and the browser's current session; afterwards it goes to `next`, an address of this server."""
    following = sessions.own_path(next_path)
    shown = page(
        "sign_in.html",
        next=following,
        openid=address("/sign-in/openid", {"next": following}) if settings().oidc_issuer else None,
        caller=_caller(request),
        allowed=_ALLOWED,
        problem=_SENTENCES[problem] if problem else "",
    )
    # Under `no-referrer` a browser sends its forms with `Origin: null`, which is nobody's.
    shown.headers["Referrer-Policy"] = "same-origin"
    return shown


def _caller(request: Request) -> Caller | None:
    """The caller of the browser's session; this page is open to all, so the access check has not looked it up."""
    token = request.cookies.get(sessions.cookie_name(request.url.scheme))
    if not token:
        return None
    with transaction() as session:
        found = sessions.find_session(session, token)
    return found.caller if found else None
