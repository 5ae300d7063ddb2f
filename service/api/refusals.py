"""What the API itself refuses before any operation is asked. Each class's docstring is its sentence."""

from __future__ import annotations

from tilewright.service.errors import ServiceError


class TooLargeError(ServiceError):
    """The body is larger than is taken."""


class TooSlowError(ServiceError):
    """The body did not arrive in time."""


class NotJSONError(ServiceError):
    """The body is not declared as JSON."""


class WrongHostError(ServiceError):
    """The Host is not on the allow-list."""


class ForeignOriginError(ServiceError):
    """The Origin is another one than this server's."""


class ForwardedError(ServiceError):
    """The request came through a proxy, which hides who asks."""


class NotLoopbackError(ServiceError):
    """The peer is another machine."""


class TooManyStreamsError(ServiceError):
    """As many event streams are open as are allowed."""


class UnknownCallerError(ServiceError):
    """The request shows no key in force."""

    headers = {"WWW-Authenticate": 'Bearer realm="tilewright"'}  # noqa: RUF012 - never changed


class ForbiddenError(ServiceError):
    """The key does not allow this."""


class TooManyRequestsError(ServiceError):
    """The caller asks too often; `retry_after_s` says when it may again."""

    def __init__(self, retry_after_s: int) -> None:
        self.headers = {"Retry-After": str(retry_after_s)}
        super().__init__(f"Too many requests; the next one is answered in {retry_after_s} s.")
