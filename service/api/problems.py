"""Problem documents (RFC 9457): every refusal of the application as one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.service.api.examples import FIELD_EXAMPLES
from tilewright.service.api.problem_types import BY_ERROR, INTERNAL, METHOD, NO_PATH, ProblemType
from tilewright.service.errors import (
    DatabaseUnavailableError,
    InvalidRequestError,
    NotFoundError,
    ServiceError,
)
from tilewright.service.operations.strict_json import RefusedJSONError, escape
from tilewright.service.operations.validation_words import plain

MEDIA_TYPE = "application/problem+json"


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
        return kind, " ".join(named) + (f" And {more} more." if more else ""), fields
    if isinstance(error, InvalidRequestError | InvalidProblemError):
        reason = error.reason if error.reason.endswith((".", "?")) else f"{error.reason}."
        fields = [_field(error.field, location, reason, error.example)]
        also = error.also[: MOST_FIELDS - 1] if isinstance(error, InvalidRequestError) else ()
        fields += [_field(one.field, location, one.reason, one.example) for one in also]
        rest = f" And {len(also)} more." if also else ""
        return kind, f"{error.field}: {reason}{rest}", fields
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
    """`Allow` with every method of the address; the framework names one route's, and several may share it."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = request.app.openapi()["paths"].get(path, {})
    return {"Allow": ", ".join(sorted(method.upper() for method in methods))} if methods else {}


async def _unexpected(request: Request, _error: Exception) -> JSONResponse:
    """A 500 that reveals nothing of the error; the server logs it with its traceback."""
    request_id = _request_id(request)
    named = f" Its request id is {request_id}." if request_id else ""
    headers = request.scope.get("tilewright.response_headers") or {}
    return response(INTERNAL, f"The request failed unexpectedly.{named}", request_id=request_id, headers=headers)


def _field_of_validation(error: Mapping[str, Any]) -> FieldProblem:
    """A field that pydantic refused, with what is allowed and an example."""
    location, *path = [str(part) for part in error["loc"]] or ["body"]
    # Keys of a union's members and validators' names are no part of the caller's document.
    parts = [p for p in path if not re.fullmatch(r"bool|str|int|float|\[key\]|(constrained|function)-.*", p)]
    known = [p for p in parts if p in FIELD_EXAMPLES]
    message = plain(str(error["msg"]))
    context = {name: value for name, value in (error.get("ctx") or {}).items() if isinstance(value, int | float | str)}
    allowed = ", ".join(f"{_RULES[name]} {value}" for name, value in context.items() if name in _RULES)
    return FieldProblem(
        pointer="#/" + "/".join(escape(p) for p in parts) if parts else "#",
        location=location,
        detail=message + ("" if message.endswith(".") else "."),
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
