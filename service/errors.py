"""The errors of the service. Their HTTP status is decided in api/problem_types.py only."""

from __future__ import annotations

from collections.abc import Sequence


class ServiceError(Exception):
    """The request cannot be served."""


class InvalidRequestError(ServiceError):
    """A field of the request has a value that is not allowed; `also`: the refusals of other fields."""

    def __init__(
        self, field: str, reason: str, example: str | None = None, also: Sequence[InvalidRequestError] = ()
    ) -> None:
        self.field, self.reason, self.example, self.also = field, reason, example, also
        super().__init__(f"{field}: {reason}" + (f" Example: {example}" if example else ""))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.reason, self.example, self.also)


class NotFoundError(ServiceError):
    """There is nothing of that name."""

    def __init__(self, kind: str, name: str, known: list[str] | None = None, remedy: str = "") -> None:
        self.kind, self.name, self.known, self.remedy = kind, name, known or [], remedy
        listed = f" Known: {', '.join(self.known)}." if self.known else ""
        super().__init__(f"There is no {kind} {name!r}.{listed}" + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.kind, self.name, self.known, self.remedy)


class NoConfigurationError(ServiceError):
    """No variant of the kernel runs this problem on this device model."""


class ConflictError(ServiceError):
    """The request contradicts what is stored."""


class CeilingError(ServiceError):
    """The request exceeds a ceiling of the caller's key."""


class TooManyRequestsError(ServiceError):
    """The caller sends too many requests; the header says when it may send the next."""

    def __init__(self, retry_after_s: int, what: str = "requests") -> None:
        self.headers = {"Retry-After": str(retry_after_s)}
        self.caller, self.held_s = "", 0.0  # by whose name it is counted; how long the answer is held back
        super().__init__(f"Too many {what}; try again in {retry_after_s} s.")


class NotOwnerError(ServiceError):
    """It belongs to another key."""


class FencedError(ServiceError):
    """Another worker took the job over; this one must stop without a further write."""


class BusyError(ServiceError):
    """The processes that predict have more to do than they can do soon."""


class CallerLeftError(ServiceError):
    """The caller of a request has closed its connection; nobody reads the answer."""


class DatabaseUnavailableError(ServiceError):
    """The database does not answer."""
