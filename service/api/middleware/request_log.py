"""One line of the log for each request, in place of the server's own: the route, never the address as it was sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import Scope

logger = logging.getLogger("tilewright.requests")

QUIET = frozenset({"/health", "/ready", "/metrics", "/static"})
"""Requested by machines every few seconds: logged at level debug unless refused."""


def facts(scope: Scope) -> Mapping[str, object]:
    """The id of a request, and its sender by the name used in the audit record."""
    caller = scope.get("tilewright.caller")
    return {"request_id": scope.get("tilewright.request_id"), "caller": caller.name if caller else None}


def write(method: str, route: str, status: int, duration_ms: float) -> None:
    """Logs an answered request without its address, whose query may hold a secret by mistake."""
    level = logging.DEBUG if route in QUIET and status < 400 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    extra = {"method": method, "route": route, "status": status, "duration_ms": round(duration_ms, 3)}
    # Made by hand: `logger.log` would look through the stack for this line's number, which costs more than the rest.
    record = logger.makeRecord(
        logger.name, level, __file__, 0, "%s %s %d in %.1f ms", (method, route, status, duration_ms), None, extra=extra
    )
    logger.handle(record)
