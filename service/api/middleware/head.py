"""HEAD for everything that GET answers: the same head, without the body (RFC 9110, 9.3.2)."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Head:
    """An ASGI application around another, which sees a GET in place of a HEAD."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HEAD passes."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["method"] = "HEAD"  # the server asks again before it writes the body, and the log afterwards
                await send(message)
                await send(
                    {"type": "http.response.body", "body": b""}
                )  # of a stream too, which would not end by itself

        scope["method"] = "GET"  # in place: the route that answers is noted in this very scope
        await self.app(scope, receive, send_head)
