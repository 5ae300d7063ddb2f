"""Refusals that the API makes before any operation runs. Each class's docstring is its sentence."""

from __future__ import annotations

from tilewright.service.errors import ServiceError


class TooLargeError(ServiceError):
    """The body is larger than allowed."""


class TooSlowError(ServiceError):
    """The body did not arrive in time."""


class NotJSONError(ServiceError):
    """The body is not declared as JSON."""


class WrongHostError(ServiceError):
    """The Host is not on the allow-list."""


class ForeignOriginError(ServiceError):
    """The Origin is not this server's."""


class ForwardedError(ServiceError):
    """The request came through a proxy, which hides the caller's address."""


class NotLoopbackError(ServiceError):
    """The caller is on another machine."""


class TooManyStreamsError(ServiceError):
    """The most event streams that are allowed are open."""


class UnknownCallerError(ServiceError):
    """The request has no valid access key."""

    headers = {"WWW-Authenticate": 'Bearer realm="tilewright"'}  # noqa: RUF012 - never changed


class ForbiddenError(ServiceError):
    """The key does not allow this."""
