"""One line of the log for each request, in place of the server's own: the route, never the address as it was sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import Scope

from tilewright.service import logs

logger = logging.getLogger("tilewright.requests")

QUIET = frozenset({"/health", "/ready", "/metrics", "/static"})
"""Requested by machines every few seconds: logged at level debug unless refused."""


def facts(scope: Scope) -> Mapping[str, object]:
    """The id of a request, and its sender by the name used in the audit record."""
    caller = scope.get("tilewright.caller")
    return {"request_id": scope.get("tilewright.request_id"), "caller": caller.name if caller else None}


def write(scope: Scope, method: str, route: str, status: int, duration_ms: float) -> None:
    """Logs an answered request, without its address, which may hold a secret by mistake, above all in its query."""
    level = logging.DEBUG if route in QUIET and status < 400 else logging.INFO
    known = {name: value for name, value in facts(scope).items() if value is not None}
    said = {"method": method, "route": route, "status": status, "duration_ms": round(duration_ms, 3)}
    logs.say(logger, level, f"{method} {route} {status} in {duration_ms:.1f} ms", known | said)
