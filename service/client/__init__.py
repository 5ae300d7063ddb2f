"""A typed HTTP client of the API, for the command line and for applications."""

from tilewright.service.client.errors import ApiProblemError, ApiUnreachableError
from tilewright.service.client.events import JobEvent
from tilewright.service.client.http import Client

__all__ = ["ApiProblemError", "ApiUnreachableError", "Client", "JobEvent"]
