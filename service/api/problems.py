"""Problem documents (RFC 9457), and the only place that gives errors their HTTP status."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.service.api import refusals
from tilewright.service.api.examples import FIELD_EXAMPLES
from tilewright.service.api.strict_json import MalformedJSONError, RefusedJSONError, escape
from tilewright.service.errors import (
    CeilingError,
    ConflictError,
    DatabaseUnavailableError,
    DeviceUnavailableError,
    InvalidRequestError,
    NoAnswerError,
    NoConfigurationError,
    NotFoundError,
    NotOwnerError,
    ServiceError,
)

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True)
class ProblemType:
    """One type of problem: the last part of its `type`, its title, its status, and what the caller can do."""

    name: str
    title: str
    status: int
    remedy: str

    @property
    def uri(self) -> str:
        """The `type` of the document, an address that answers with the remedy."""
        return f"/problems/{self.name}"


INVALID = ProblemType("invalid-request", "A field has a value that is not allowed.", 422, "Correct the named fields.")
MALFORMED = ProblemType("malformed-json", "The body is not valid JSON.", 400, "Send valid JSON, in UTF-8.")
NOT_FOUND = ProblemType(
    "not-found",
    "The requested item does not exist.",
    404,
    "Use an existing name or id.",
)
NO_CONFIGURATION = ProblemType(
    "no-configuration",
    "No variant runs this problem on this device model.",
    404,
    "Choose another problem or device model.",
)
CONFLICT = ProblemType(
    "conflict", "The request conflicts with stored data.", 409, "Do what `detail` says, or use a new key or name."
)
UNAVAILABLE = ProblemType(
    "unavailable", "The service is temporarily unavailable.", 503, "Try again after Retry-After seconds."
)
NOT_READY = ProblemType("not-ready", "The service is not ready.", 503, "Do what `detail` says, or wait.")
NO_DEVICE = ProblemType(
    "device-unavailable", "The device is not available now.", 503, "Do what `detail` says, or name another device."
)
NO_ANSWER = ProblemType(
    "no-answer", "The device did not answer in time.", 504, "Try again after Retry-After seconds, or on another device."
)
FORBIDDEN = ProblemType(
    "forbidden", "The key does not allow this.", 403, "Use a key with the scope that `detail` names."
)
INTERNAL = ProblemType(
    "internal-error",
    "An internal error occurred.",
    500,
    "Report it with the request id; the server's log has the details.",
)
NO_PATH = ProblemType(
    "no-such-path", "This address does not exist.", 404, "See /openapi.json for the addresses of the API."
)
METHOD = ProblemType(
    "method-not-allowed", "This address does not allow this method.", 405, "Use one of the methods in Allow."
)

BY_ERROR: Mapping[type[Exception], ProblemType] = {
    InvalidProblemError: INVALID,
    InvalidRequestError: INVALID,
    RequestValidationError: INVALID,
    RefusedJSONError: INVALID,
    MalformedJSONError: MALFORMED,
    UnknownNameError: NOT_FOUND,
    NotFoundError: NOT_FOUND,
    NoConfigurationError: NO_CONFIGURATION,
    ConflictError: CONFLICT,
    DatabaseUnavailableError: UNAVAILABLE,
    DeviceUnavailableError: NO_DEVICE,
    NoAnswerError: NO_ANSWER,
    refusals.TooLargeError: ProblemType("too-large", "The body is too large.", 413, "Send less per request."),
    refusals.TooSlowError: ProblemType(
        "too-slow", "The body did not arrive in time.", 408, "Send the body without pauses."
    ),
    refusals.NotJSONError: ProblemType(
        "not-json", "The body must be application/json.", 415, "Send `Content-Type: application/json`."
    ),
    refusals.WrongHostError: ProblemType(
        "wrong-host",
        "The Host header names a host that is not allowed.",
        421,
        "Add the host to TILEWRIGHT_ALLOWED_HOSTS.",
    ),
    refusals.ForeignOriginError: ProblemType(
        "foreign-origin",
        "Pages of other origins may not call this server.",
        403,
        "Call it from the server's own pages.",
    ),
    refusals.ForwardedError: ProblemType(
        "forwarded",
        "Requests through a proxy are refused unless access keys are required.",
        403,
        "Connect directly, or set TILEWRIGHT_REQUIRE_KEYS.",
    ),
    refusals.NotLoopbackError: ProblemType(
        "not-loopback",
        "Only this machine may call unless access keys are required.",
        403,
        "Connect from this machine, or set TILEWRIGHT_REQUIRE_KEYS.",
    ),
    refusals.UnknownCallerError: ProblemType(
        "unknown-caller",
        "An access key is required.",
        401,
        "Send `Authorization: Bearer` and a key, or sign in at /sign-in.",
    ),
    refusals.ForbiddenError: FORBIDDEN,
    NotOwnerError: FORBIDDEN,
    refusals.TooManyRequestsError: ProblemType(
        "too-many-requests", "Too many requests.", 429, "Wait for Retry-After seconds."
    ),
    CeilingError: ProblemType(
        "over-ceiling",
        "The request exceeds a ceiling of this key.",
        403,
        "Request less, or have the key's ceiling raised.",
    ),
    refusals.TooManyStreamsError: ProblemType(
        "too-many-streams",
        "Too many streams are open.",
        503,
        "Poll the job instead of following it, or try again later.",
    ),
}
OTHER = (NOT_READY, INTERNAL, NO_PATH, METHOD)


MOST_FIELDS = 50
"""Fields listed in one document: a body of a megabyte can have a hundred thousand wrong ones."""

LONGEST = 4000
"""Characters of a sentence or a pointer: both repeat what the caller sent, which may be as long as the body."""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\u2026"


Sentence = Annotated[str, AfterValidator(_cut)]


class FieldProblem(BaseModel):
    """A field that was refused."""

    pointer: Sentence = Field(description="JSON pointer into the body (`#/shape/m`), or `#/` and a parameter's name.")
    location: str = Field(description="Where the field is: body, query, path or header.")
    detail: Sentence = Field(description="What is wrong with it.")
    allowed: str | None = Field(default=None, description="The values that are allowed.")
    example: str | None = Field(default=None, description="A valid value.")


class ProblemDocument(BaseModel):
    """A refusal (RFC 9457); `type` is an address that says what to do about it."""

    type: str
    title: str
    status: int
    detail: Sentence
    request_id: str | None = None
    missing: str | None = Field(
        default=None, description="Of not-found: the kind of item that does not exist, like `kernel` or `device model`."
    )
    errors: list[FieldProblem] | None = None


def all_types() -> list[ProblemType]:
    """Every type of problem, each once, by name."""
    return sorted({*BY_ERROR.values(), *OTHER}, key=lambda kind: kind.name)


def document(
    kind: ProblemType,
    detail: str,
    *,
    request_id: str | None = None,
    missing: str | None = None,
    errors: Sequence[FieldProblem] = (),
) -> dict[str, Any]:
    """The document as plain JSON."""
    full = ProblemDocument(
        type=kind.uri,
        title=kind.title,
        status=kind.status,
        detail=detail,
        request_id=request_id or None,
        missing=missing,
        errors=list(errors) or None,
    )
    return full.model_dump(exclude_none=True)


def describe(error: Exception, location: str) -> tuple[ProblemType, str, list[FieldProblem]]:
    """Problem type, sentence and refused fields of an expected error."""
    kind = next(BY_ERROR[c] for c in type(error).__mro__ if c in BY_ERROR)
    if isinstance(error, RequestValidationError):
        refused = error.errors()
        fields = [_field_of_validation(e) for e in refused[:MOST_FIELDS]]
        named = [f"{_readable(f.pointer)}: {f.detail}" for f in fields[:5]]
        more = len(refused) - len(named)
        return kind, "; ".join(named) + (f" And {more} more." if more else ""), fields
    if isinstance(error, InvalidRequestError | InvalidProblemError):
        reason = error.reason if error.reason.endswith((".", "?")) else f"{error.reason}."
        return kind, f"{error.field}: {reason}", [_field(error.field, location, reason, error.example)]
    if isinstance(error, RefusedJSONError):
        field = FieldProblem(pointer=f"#{error.pointer}", location="body", detail=error.reason)
        return kind, f"{_readable(field.pointer) or 'The body'} {error.reason}", [field]
    if isinstance(error, DatabaseUnavailableError):
        return kind, "The database does not answer.", []  # its own words name hosts and users
    return kind, str(error), []


def install(app: FastAPI) -> None:
    """Makes every refusal of the application a problem document."""
    app.add_exception_handler(ServiceError, _expected)
    app.add_exception_handler(InvalidProblemError, _expected)
    app.add_exception_handler(UnknownNameError, _expected)
    app.add_exception_handler(RequestValidationError, _expected)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def response(
    kind: ProblemType,
    detail: str,
    *,
    request_id: str | None = None,
    missing: str | None = None,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The document as a response."""
    retry = {"Retry-After": "5"} if kind.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return JSONResponse(
        document(kind, detail, request_id=request_id, missing=missing, errors=errors),
        status_code=kind.status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store"} | retry | dict(headers or {}),
    )


def response_to(error: Exception, location: str, request_id: str | None = None) -> JSONResponse:
    """The response to an expected error."""
    kind, detail, errors = describe(error, location)
    headers: Mapping[str, str] | None = getattr(error, "headers", None)
    missing = error.kind if isinstance(error, NotFoundError | UnknownNameError) else None
    return response(kind, detail, request_id=request_id, missing=missing, errors=errors, headers=headers)


def _request_id(request: Request) -> str | None:
    request_id = request.scope.get("tilewright.request_id")
    return str(request_id) if request_id else None


async def _expected(request: Request, error: Exception) -> JSONResponse:
    if not any(c in BY_ERROR for c in type(error).__mro__):
        return await _unexpected(request, error)
    location = "body" if request.method in {"POST", "PUT", "PATCH"} else "query"
    return response_to(error, location, _request_id(request))


async def _http(request: Request, error: Exception) -> JSONResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = getattr(error, "headers", None)
    if status == HTTPStatus.NOT_FOUND:
        return response(NO_PATH, f"{request.url.path} does not exist on this server.", request_id=_request_id(request))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"{request.method} is not allowed at {request.url.path}."
        return response(METHOD, detail, request_id=_request_id(request), headers=_allowed(request) or headers)
    phrase = HTTPStatus(status).phrase
    other = ProblemType(phrase.lower().replace(" ", "-"), phrase, status, "")
    return response(other, phrase, request_id=_request_id(request), headers=headers)


def _allowed(request: Request) -> dict[str, str]:
    """`Allow` with every method of the address; the framework names those of one route, and several may share it."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = request.app.openapi()["paths"].get(path, {})
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))} if methods else {}


async def _unexpected(request: Request, _error: Exception) -> JSONResponse:
    """A 500 that reveals nothing of the error; the server logs it with its traceback."""
    request_id = _request_id(request)
    named = f" Its request id is {request_id}." if request_id else ""
    headers = request.scope.get("tilewright.response_headers") or {}
    return response(INTERNAL, f"The request failed unexpectedly.{named}", request_id=request_id, headers=headers)


_ARTICLE = re.compile(r"^(Value error|Input) ")


def _field_of_validation(error: Mapping[str, Any]) -> FieldProblem:
    """A field that pydantic refused, with what is allowed and an example."""
    location, *path = [str(part) for part in error["loc"]] or ["body"]
    # Keys of a union's members and validators' names are no part of the caller's document.
    parts = [p for p in path if not re.fullmatch(r"bool|str|int|float|\[key\]|(constrained|function)-.*", p)]
    known = [p for p in parts if p in FIELD_EXAMPLES]
    message = _ARTICLE.sub("", str(error["msg"]).removeprefix("Value error, "))
    context = {name: value for name, value in (error.get("ctx") or {}).items() if isinstance(value, int | float | str)}
    allowed = ", ".join(f"{_RULES[name]} {value}" for name, value in context.items() if name in _RULES)
    return FieldProblem(
        pointer="#/" + "/".join(escape(p) for p in parts) if parts else "#",
        location=location,
        detail=message[:1].upper() + message[1:] + ("" if message.endswith(".") else "."),
        allowed=allowed or None,
        example=FIELD_EXAMPLES[known[-1]] if known else None,
    )


_RULES = {
    "gt": "more than",
    "ge": "at least",
    "lt": "less than",
    "le": "at most",
    "max_length": "at most this long:",
    "min_length": "at least this long:",
    "pattern": "matching",
    "expected": "one of",
}


def _field(name: str, location: str, reason: str, example: str | None) -> FieldProblem:
    pointer = "#/" + "/".join(escape(part) for part in name.split("."))
    example = example or FIELD_EXAMPLES.get(name.split(".", maxsplit=1)[0])
    return FieldProblem(pointer=pointer, location=location, detail=reason, example=example)


def _readable(pointer: str) -> str:
    return pointer.removeprefix("#").lstrip("/").replace("/", ".")
