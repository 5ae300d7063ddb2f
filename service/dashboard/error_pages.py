"""Refusals as pages: a browser gets HTML, a program the problem document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.service.dashboard.rendering import page

PROBLEM = "application/problem+json"
UNEXPECTED = "/problems/internal-error"


@dataclass(frozen=True)
class ErrorPages:
    """ASGI middleware that shows problem documents to browsers as pages.

    `remedies`: what to do, by a document's `type`.
    """

    app: ASGIApp
    remedies: Mapping[str, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; one that does not accept HTML passes through."""
        if scope["type"] != "http" or not asks_for_page(scope):
            await self.app(scope, receive, send)
            return
        head: Message | None = None
        is_begun, body = False, bytearray()

        async def send_shown(message: Message) -> None:
            nonlocal head, is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                if Headers(raw=message["headers"]).get("content-type") == PROBLEM:
                    head = message
                    return
            if head is None:
                await send(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                await self._show(head["headers"], json.loads(body), send)

        try:
            await self.app(scope, receive, send_shown)
        except Exception:
            if not is_begun:  # the framework's own answer would be JSON; it still logs what is raised on
                given = {"cache-control": "no-store"} | scope.get("tilewright.response_headers", {})
                document = {"type": UNEXPECTED, "title": "An internal error occurred.", "status": 500}
                request_id = scope.get("tilewright.request_id")
                detail = "The request failed unexpectedly."
                headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
                await self._show(headers, document | {"detail": detail, "request_id": request_id}, send)
            raise

    async def _show(self, given: list[tuple[bytes, bytes]], document: Mapping[str, Any], send: Send) -> None:
        shown = page("refused.html", status=document["status"], **self._words(document))
        headers = MutableHeaders(raw=list(given))
        headers["content-type"] = shown.headers["content-type"]
        headers["content-length"] = shown.headers["content-length"]
        await send({"type": "http.response.start", "status": document["status"], "headers": headers.raw})
        await send({"type": "http.response.body", "body": shown.body})

    def _words(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "title": document["title"].removesuffix("."),
            "reason": document["detail"],
            "code": document["status"],
            "remedy": self.remedies.get(document["type"], ""),
            "request_id": document.get("request_id"),
        }


def asks_for_page(scope: Scope) -> bool:
    """Whether the request accepts HTML but not JSON, as a browser does when it opens an address."""
    for name, value in scope["headers"]:
        if name == b"accept":
            return b"text/html" in value and b"json" not in value
    return False
