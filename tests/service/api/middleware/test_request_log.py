"""One line of the log for each request, and HEAD: what GET would say, without its body."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest
from caller import Caller, new_app
from sqlalchemy.exc import IntegrityError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tilewright.service import logs
from tilewright.service.api.middleware.head import Head
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models


@pytest.fixture
def keyed(client, json_log, monkeypatch):
    """A server that demands keys and logs as JSON; a caller, an admin's token and a browser session's."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    with transaction() as session:
        token = keys.create_key(session, KeyRequest(name="ci", scope="admin")).token
        cookie = sessions.open_session(session, token)
    yield Caller(new_app()), token, cookie
    monkeypatch.undo()
    settings.cache_clear()


def records(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_request_is_one_line_with_its_route_its_caller_and_its_id(keyed, capsys):
    caller, token, _ = keyed
    capsys.readouterr()
    caller.get("/v1/jobs?state=done", headers={"Authorization": f"Bearer {token}", "X-Request-Id": "of-the-test"})
    (said,) = records(capsys)
    assert said.pop("duration_ms") > 0
    said.pop("time")
    assert said == {
        "level": "info",
        "logger": "tilewright.requests",
        "message": said["message"],
        "request_id": "of-the-test",
        "caller": "key ci",
        "method": "GET",
        "route": "/v1/jobs",
        "status": 200,
    }


def test_a_request_in_a_log_as_text_says_nothing_twice(keyed, capsys):
    caller, token, _ = keyed
    logs.configure()  # of the default format
    capsys.readouterr()
    caller.get("/v1/jobs", headers={"Authorization": f"Bearer {token}", "X-Request-Id": "of-the-test"})
    said = r"GET /v1/jobs 200 in [\d.]+ ms \[request_id=of-the-test caller=key ci\]"
    assert re.fullmatch(rf"\S+Z INFO tilewright\.requests: {said}\n", capsys.readouterr().err)


def test_health_checks_are_quiet_until_they_fail(keyed, capsys):
    caller, _, _ = keyed
    capsys.readouterr()
    caller.get("/health")
    assert records(capsys) == []
    caller.get("/health", headers={"host": "elsewhere"})
    assert [said["status"] for said in records(capsys)] == [421]


def test_a_line_within_a_request_has_its_id(keyed, capsys):
    caller, token, _ = keyed

    @caller.app.get("/v1/fails")
    def fails() -> None:  # in a thread of the pool
        logging.getLogger("tilewright.test").warning("within")
        raise RuntimeError("of the test")

    capsys.readouterr()
    caller.get("/v1/fails", headers={"Authorization": f"Bearer {token}", "X-Request-Id": "of-the-test"})
    within, line = records(capsys)
    assert (within["message"], within["request_id"], within["caller"]) == ("within", "of-the-test", "key ci")
    assert (line["status"], line["route"]) == (500, "/v1/fails")


def test_no_secret_reaches_the_log_wherever_it_is_sent(keyed, capsys):
    caller, token, cookie = keyed
    capsys.readouterr()
    bearer = {"Authorization": f"Bearer {token}"}
    sent = [
        caller.get("/v1/jobs", headers=bearer),
        caller.get(f"/v1/jobs?key={token}", headers=bearer),
        caller.get(f"/v1/kernels/{token}", headers=bearer),
        caller.get(f"/{token}", headers=bearer),
        caller.get("/v1/jobs", headers={"Authorization": f"Bearer {token}x"}),
        caller.get("/v1/jobs", headers={"Cookie": f"tilewright_session={cookie}"}),
        caller.post("/v1/jobs", headers=bearer, json={"kernel": token}),
        caller.post("/v1/keys", headers=bearer, json={"name": "other", "scope": "read"}),
        caller.post(
            "/v1/webhooks", headers=bearer, json={"name": "ci", "url": "https://u:hunter22@ci.example/x", "states": []}
        ),
    ]
    assert {response.status_code for response in sent} >= {200, 201, 401, 404, 422}
    made = sent[-2].json()["token"]
    written = capsys.readouterr().err
    assert len(written.splitlines()) == len(sent)
    for secret in (token, cookie, made, "hunter22"):
        assert secret[3:] not in written


def test_the_error_of_a_failed_statement_shows_no_parameters(client):
    with pytest.raises(IntegrityError, match="duplicate key") as caught, transaction() as session:  # noqa: PT012
        for _ in range(2):
            session.add(models.Webhook(name="one", url="https://ci.example", secret="whsec_verysecret", states=[]))
        session.flush()
    assert "verysecret" not in str(caught.value)


@pytest.fixture
def heads() -> Caller:
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


def test_a_head_is_answered_as_a_get_without_its_body(heads):
    given, head = heads.get("/text"), heads.request("HEAD", "/text")
    assert (head.status_code, head.headers, head.content) == (200, given.headers, b"")
    assert heads.post("/text").text == "asked by POST"


def test_the_head_of_an_endless_stream_ends(heads):
    head = heads.request("HEAD", "/endless")
    assert (head.status_code, head.headers["content-type"], head.content) == (
        200,
        "text/event-stream; charset=utf-8",
        b"",
    )
