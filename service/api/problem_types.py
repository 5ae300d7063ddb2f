"""The types of problem documents, and the only place that gives errors their HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi.exceptions import RequestValidationError

from tilewright.kernels.errors import InvalidProblemError, UnknownNameError
from tilewright.service.api import refusals
from tilewright.service.errors import (
    BusyError,
    CeilingError,
    ConflictError,
    DatabaseUnavailableError,
    InvalidRequestError,
    NoConfigurationError,
    NotFoundError,
    NotOwnerError,
    TooManyRequestsError,
)
from tilewright.service.operations.strict_json import MalformedJSONError, RefusedJSONError


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
    BusyError: UNAVAILABLE,
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
        "Send the header `Authorization: Bearer KEY`, or sign in at /sign-in.",
    ),
    refusals.ForbiddenError: FORBIDDEN,
    NotOwnerError: FORBIDDEN,
    TooManyRequestsError: ProblemType("too-many-requests", "Too many requests.", 429, "Wait for Retry-After seconds."),
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


def all_types() -> list[ProblemType]:
    """Every type of problem, each once, by name."""
    return sorted({*BY_ERROR.values(), *OTHER}, key=lambda kind: kind.name)
