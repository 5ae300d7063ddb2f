"""The page to sign in and out, and that of access: keys, projects, browsers that are signed in, changes, imports."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from tilewright.service.dashboard import views
from tilewright.service.dashboard.rendering import PageRoute, address, may, page
from tilewright.service.operations.access import audit, keys, projects, sessions
from tilewright.service.operations.access.sessions import SignInProblem
from tilewright.service.operations.caller import Caller, Scope
from tilewright.service.operations.jobs import jobs
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.webhooks import webhooks
from tilewright.service.settings import settings

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHOWN_CHANGES, SHOWN_IMPORTS = 50, 20


@router.get("/access")
def access(
    request: Request,
    actor: Annotated[str | None, Query(max_length=128)] = None,
    cursor: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """Keys, projects, sessions, changes, imports and webhooks; for the scope admin alone."""
    if not may(request, Scope.ADMIN):
        return page("access.html", is_admin=False)
    with transaction() as session:
        changes = audit.entries(session, actor=actor or None, limit=SHOWN_CHANGES, cursor=cursor or None)
        own_keys, signed_in = keys.keys(session), sessions.open_sessions(session)
        teams = projects.projects(session)
        imports = [views.job_line(job) for job in jobs.imports(session, SHOWN_IMPORTS)]
        hooks = webhooks.webhooks(session)
    next_path = address("/access", {"actor": actor, "cursor": changes.next_cursor}) if changes.next_cursor else None
    return page(
        "access.html",
        is_admin=True,
        actor=actor or None,
        changes=changes.items,
        first=address("/access", {"actor": actor}) if cursor else None,
        next=f"{next_path}#changes" if next_path else None,
        keys=own_keys,
        projects=teams,
        sessions=signed_in,
        imports=imports,
        webhooks=hooks,
    )


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
