"""HEAD: what GET would say, without its body."""

import asyncio

import pytest
from caller import Caller
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tilewright.service.api.middleware.head import Head


@pytest.fixture
def client() -> Caller:
    async def text(request: Request):
        return PlainTextResponse(f"asked by {request.method}")

    async def endless(_request: Request):
        async def parts():
            while True:
                yield b"more"
                await asyncio.sleep(0)

        return StreamingResponse(parts(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/text", text, methods=["GET", "POST"]), Route("/endless", endless)])
    app.add_middleware(Head)
    return Caller(app)


def test_a_head_is_answered_as_a_get_without_its_body(client):
    given, head = client.get("/text"), client.request("HEAD", "/text")
    assert (head.status_code, head.headers, head.content) == (200, given.headers, b"")
    assert client.post("/text").text == "asked by POST"


def test_the_head_of_an_endless_stream_ends(client):
    head = client.request("HEAD", "/endless")
    assert (head.status_code, head.headers["content-type"], head.content) == (
        200,
        "text/event-stream; charset=utf-8",
        b"",
    )
