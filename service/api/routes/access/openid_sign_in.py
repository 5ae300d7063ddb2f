"""Sign-in of browsers at an OpenID provider: there, back with a code, then a session as with a key."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from tilewright.service.api import refusals
from tilewright.service.api.middleware.access import address_of, lock_of
from tilewright.service.api.routes.access.browser_session import give_session
from tilewright.service.errors import NotFoundError, TooManyRequestsError
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.access.sessions import SignInProblem
from tilewright.service.operations.caller import Caller, Scope, acting_as
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

if TYPE_CHECKING:
    from tilewright.service.api.openid import Attempt

router = APIRouter(prefix="/sign-in/openid", include_in_schema=False)

LASTS_S = 600
"""How long somebody may take at the provider."""

Text = Annotated[str, Query(max_length=4096)]


@router.get("")
async def begin(request: Request, following: Annotated[str, Query(alias="next", max_length=2048)] = "/") -> Response:
    """Sends the browser to the provider, with a cookie that only this browser has."""
    openid = _openid()
    attempt = openid.Attempt.new(sessions.own_path(following))
    try:
        where = await to_thread.run_sync(openid.provider().address, attempt, limiter=lock_of(request.scope).abroad)
    except openid.OpenIDError:
        return _refused(attempt.following, SignInProblem.NO_ANSWER)
    response = RedirectResponse(where, status_code=303, headers={"Cache-Control": "no-store"})
    response.set_cookie(value=attempt.text, max_age=LASTS_S, **_cookie(request))
    return response


@router.get("/return")
async def come_back(
    request: Request, code: Text = "", state: Text = "", iss: Annotated[str | None, Query(max_length=2048)] = None
) -> Response:
    """Gives the browser a session where the provider says who it is, else shows the form with the reason."""
    openid = _openid()
    attempt = _attempt(request)
    if attempt is None or not code:
        return _refused(attempt.following if attempt else "/", SignInProblem.NO_ANSWER)
    find = partial(_session, attempt, request.scope.get("tilewright.request_id"), state=state, code=code, issuer=iss)
    lock = lock_of(request.scope)
    try:
        token = await lock.look_up(find, address_of(request.scope), limiter=lock.abroad)
    except TooManyRequestsError:
        return _refused(attempt.following, SignInProblem.TOO_OFTEN)
    except openid.NoRightsError:
        return _refused(attempt.following, SignInProblem.NO_RIGHTS)
    except refusals.UnknownCallerError:
        return _refused(attempt.following, SignInProblem.NO_ANSWER)
    # A page, not a redirect: the browser comes from the provider's site, and would not send a strict cookie along.
    where = escape(attempt.following)
    response = HTMLResponse(
        f'<!doctype html><meta charset="utf-8"><title>Signed in</title><link rel="icon" href="/static/icon.svg">'
        f'<meta http-equiv="refresh" content="0;url={where}"><p><a href="{where}">Signed in: go on</a></p>',
        headers={"Cache-Control": "no-store"},
    )
    await give_session(token, request, response)
    response.delete_cookie(**_cookie(request))
    return response


def _session(attempt: Attempt, request_id: str | None, **answer: Any) -> str | None:
    """The token of a session for the person who comes back; None if the provider does not name one."""
    openid = _openid()
    try:
        person = openid.provider().person(attempt, **answer)
    except openid.OpenIDError:
        return None
    with (
        acting_as(Caller(f"key {person.name}", Scope.READ), "GET /sign-in/openid/return", request_id),
        transaction() as session,
    ):
        owner = keys.key_of_person(session, person.name, person.scope, person.project)
        if owner is None:
            raise openid.NoRightsError(f"The key {person.name!r} was revoked.")
        return sessions.session_of(session, owner)


def _openid() -> Any:
    """The module for OpenID, which needs Authlib; raises NotFoundError without a provider."""
    if settings().oidc_issuer is None:
        raise NotFoundError("sign-in", "openid", remedy="TILEWRIGHT_OIDC_ISSUER names a provider.")
    from tilewright.service.api import openid  # noqa: PLC0415

    return openid


def _attempt(request: Request) -> Attempt | None:
    fields = dict(parse_qsl(request.cookies.get(str(_cookie(request)["key"]), ""), max_num_fields=8))
    if fields.keys() != {"state", "nonce", "verifier", "following"}:
        return None
    attempt: Attempt = _openid().Attempt(**fields | {"following": sessions.own_path(fields["following"])})
    return attempt


def _refused(following: str, problem: SignInProblem) -> Response:
    return RedirectResponse(sessions.sign_in_path(following, problem), status_code=303)


def _cookie(request: Request) -> dict[str, Any]:
    """Name and attributes: lax, since the provider's page leads back here."""
    name = sessions.cookie_name(request.url.scheme)
    return {
        "key": f"{name}_openid",
        "httponly": True,
        "samesite": "lax",
        "secure": name == sessions.HOST_COOKIE,
    }
