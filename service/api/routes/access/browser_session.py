"""Sign-in and sign-out of browsers, by forms without scripts; the pages are the dashboard's."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from tilewright.service.api import refusals
from tilewright.service.api.middleware.access import address_of, lock_of, session_token
from tilewright.service.api.openapi import refuses
from tilewright.service.api.problem_types import BY_ERROR, INVALID, UNAVAILABLE
from tilewright.service.errors import InvalidRequestError, TooManyRequestsError
from tilewright.service.operations.access import sessions
from tilewright.service.operations.access.sessions import SignInProblem
from tilewright.service.operations.requests import SessionRequest
from tilewright.service.operations.transaction import committed, transaction

router = APIRouter(tags=["access"])

MOST_FIELDS = 4
"""Fields of the form: the key, the page to go to, and room for what a browser extension adds."""


@router.post(
    "/v1/session",
    operation_id="open_session",
    status_code=204,
    responses=refuses(INVALID, BY_ERROR[refusals.UnknownCallerError], UNAVAILABLE),
)
async def open_session(body: SessionRequest, request: Request, response: Response) -> None:
    """Exchange a key for a cookie of twelve hours that scripts cannot read and other sites cannot send."""
    await _open(body.key, request, response)


@router.delete("/v1/session", operation_id="close_session", status_code=204, responses=refuses(UNAVAILABLE))
def close_session(request: Request, response: Response) -> None:
    """Sign out. Does nothing without a session."""
    _close(request, response)


@router.post("/sign-in", include_in_schema=False)
async def sign_in(request: Request) -> Response:
    """Redirects to the requested page, or back to the form with the reason; the key is in no address."""
    form = await _form(request)
    next_path = sessions.own_path(form.get("next", "/"))
    response = RedirectResponse(next_path, status_code=303)
    try:
        await _open(form.get("key", "").strip(), request, response)
    except refusals.UnknownCallerError:
        return RedirectResponse(sessions.sign_in_path(next_path, SignInProblem.WRONG_KEY), status_code=303)
    except TooManyRequestsError:
        return RedirectResponse(sessions.sign_in_path(next_path, SignInProblem.TOO_OFTEN), status_code=303)
    return response


@router.post("/sign-out", include_in_schema=False)
def sign_out(request: Request) -> Response:
    """Ends the browser's session and shows the form."""
    response = RedirectResponse(sessions.sign_in_path(), status_code=303)
    _close(request, response)
    return response


async def _open(key: str, request: Request, response: Response) -> None:
    """Gives the browser a session; raises UnknownCallerError, TooManyRequestsError."""
    await give_session(
        await lock_of(request.scope).look_up(partial(_new_session, key), address_of(request.scope)), request, response
    )


async def give_session(token: str, request: Request, response: Response) -> None:
    """Has the browser keep the token, and ends the session that it had before."""
    before = session_token(request.url.scheme, request.headers)
    if before is not None:  # the browser forgets it: nobody else shall find it
        await run_in_threadpool(_end, before, request)
    seconds = int(sessions.LASTS.total_seconds())
    response.set_cookie(value=token, max_age=seconds, **_cookie(request))


def _close(request: Request, response: Response) -> None:
    token = session_token(request.url.scheme, request.headers)
    if token is not None:
        _end(token, request)
    response.delete_cookie(**_cookie(request))


def _end(token: str, request: Request) -> None:
    with transaction() as session:
        is_closed = sessions.close_session(session, token)
    if is_closed:  # else anybody could have everybody looked up again, again and again
        lock_of(request.scope).forget()


def _cookie(request: Request) -> dict[str, Any]:
    """The cookie's name and attributes; behind a proxy with TLS browsers use https, though requests arrive without."""
    name = sessions.cookie_name(request.url.scheme)
    return {"key": name, "httponly": True, "samesite": "strict", "secure": name == sessions.HOST_COOKIE}


def _new_session(key: str) -> str | None:
    return committed(sessions.open_session)(key)


async def _form(request: Request) -> dict[str, str]:
    try:
        fields = parse_qs((await request.body()).decode("latin-1"), max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise InvalidRequestError("key", f"the form cannot be read: {error}.") from None
    return {name: values[-1] for name, values in fields.items()}
