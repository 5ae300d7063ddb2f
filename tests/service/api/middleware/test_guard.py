"""The door: every rule with what it refuses, and that what it lets through arrives."""

import asyncio
import json

import httpx
import pytest
from caller import BASE_URL, Caller
from fastapi import FastAPI, Request

from tilewright.service.api import problems
from tilewright.service.api.middleware import guard
from tilewright.service.api.middleware.guard import Guard, Rules

RULES = Rules(frozenset({"127.0.0.1", "localhost", "[::1]"}), max_body_bytes=1000)


@pytest.fixture
def echo() -> Caller:
    """An application behind the guard that needs no database."""
    app = FastAPI()

    @app.post("/echo")
    async def echoed(request: Request) -> dict[str, str]:
        return {"body": (await request.body()).decode()}

    @app.get("/fail")
    async def fail() -> None:
        raise ZeroDivisionError("a secret")

    problems.install(app)
    app.add_middleware(Guard, rules=RULES)
    return Caller(app)


def refused(response: httpx.Response, status: int, name: str) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert (document["type"], document["status"]) == (f"/problems/{name}", status)
    assert document["title"]
    assert document["detail"]
    assert document["request_id"] == response.headers["x-request-id"]
    return document


def test_good_body_arrives_whole(echo):
    response = echo.post("/echo", json={"text": "é" * 100})
    assert json.loads(response.json()["body"]) == {"text": "é" * 100}


def test_every_response_carries_security_headers_and_an_id(echo):
    for path in ("/echo", "/nothing", "/fail"):
        headers = echo.get(path, headers={"X-Request-Id": "given-id-1"}).headers
        assert headers["x-request-id"] == "given-id-1"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"


def test_request_id_that_is_no_word_is_replaced(echo):
    assert echo.get("/nothing", headers={"X-Request-Id": "<script>"}).headers["x-request-id"] != "<script>"


def test_unexpected_error_tells_nothing_of_itself(echo):
    response = echo.get("/fail")
    document = refused(response, 500, "internal-error")
    assert "secret" not in response.text
    assert document["request_id"] in document["detail"]


@pytest.mark.parametrize("body", [b"x" * 1001, b'{"a": "' + b"x" * 3_000_000 + b'"}'])
def test_large_body_is_refused(echo, body):
    refused(echo.post("/echo", content=body, headers={"Content-Type": "application/json"}), 413, "too-large")


def test_large_chunked_body_is_refused(echo):
    async def parts():
        for _ in range(20):
            yield b" " * 100

    refused(echo.post("/echo", content=parts(), headers={"Content-Type": "application/json"}), 413, "too-large")


def test_body_announced_as_enormous_is_refused_unread(echo):
    headers = {"Content-Type": "application/json", "Content-Length": str(10**12)}
    refused(echo.post("/echo", content=b"{}", headers=headers), 413, "too-large")


def test_body_that_does_not_arrive_is_refused(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.01)
    sent = []

    async def never():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"5")]
    scope = {"type": "http", "method": "POST", "path": "/echo", "raw_path": b"/echo", "query_string": b""}
    scope |= {"headers": headers, "client": ("127.0.0.1", 1), "scheme": "http"}
    asyncio.run(Guard(FastAPI(), RULES)(scope, never, send))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
def test_body_of_another_type_is_refused(echo, kind):
    refused(echo.post("/echo", content=b"{}", headers={"Content-Type": kind}), 415, "not-json")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:80:80", "[::1"])
def test_other_hosts_are_refused(echo, host):
    refused(echo.get("/nothing", headers={"Host": host}), 421, "wrong-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:9", "[::1]:8000"])
def test_own_hosts_are_let_through(echo, host):
    refused(echo.get("/nothing", headers={"Host": host}), 404, "no-such-path")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8000"])
def test_foreign_origins_are_refused(echo, origin):
    refused(echo.post("/echo", json={}, headers={"Origin": origin}), 403, "foreign-origin")


def test_own_origin_is_let_through(echo):
    assert echo.post("/echo", json={}, headers={"Origin": BASE_URL}).status_code == 200


PUBLIC = Rules(
    frozenset({"127.0.0.1", "tiles.example"}), 1000, loopback_only=False, public_origin="https://tiles.example"
)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("tiles.example", "https://tiles.example", 200),
        ("127.0.0.1:8000", "https://tiles.example", 200),  # a proxy that does not hand the Host on
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),  # a browser on the machine itself
        ("tiles.example", "http://tiles.example", 403),
        ("tiles.example:8000", "http://tiles.example:8000", 403),
        ("tiles.example", "https://tiles.example:8443", 403),
        ("tiles.example", "null", 403),
        ("tiles.example", "https://evil.example", 403),
    ],
)
def test_behind_a_proxy_the_public_origin_counts(echo, host, origin, status):
    echo.app.user_middleware[0].kwargs["rules"] = PUBLIC
    answer = echo.post("/echo", json={}, headers={"Host": host, "Origin": origin})
    assert answer.status_code == status, answer.text


def test_scripts_and_styles_are_given_to_any_origin_and_nothing_else_is(echo):
    foreign = {"Origin": "https://evil.example"}
    refused(echo.get("/static/nothing.js", headers=foreign), 404, "no-such-path")
    refused(echo.post("/static/nothing.js", headers=foreign), 403, "foreign-origin")
    refused(echo.get("/echo", headers=foreign), 403, "foreign-origin")


def test_other_sites_may_not_post_without_origin(echo):
    refused(echo.post("/echo", json={}, headers={"Sec-Fetch-Site": "cross-site"}), 403, "foreign-origin")


@pytest.mark.parametrize(
    "header",
    [
        *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"),
        *("CF-Connecting-IP", "X-Client-IP", "True-Client-IP"),
    ],
)
def test_forwarded_requests_are_refused(echo, header):
    document = refused(echo.get("/nothing", headers={header: "127.0.0.1"}), 403, "forwarded")
    assert header.lower() in document["detail"].lower()


@pytest.mark.parametrize("peer", ["10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "nonsense"])
def test_other_machines_are_refused(echo, peer):
    refused(Caller(echo.app, (peer, 1)).get("/nothing"), 403, "not-loopback")


@pytest.mark.parametrize("peer", ["127.0.0.5", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_let_through(echo, peer):
    refused(Caller(echo.app, (peer, 1)).get("/nothing"), 404, "no-such-path")


@pytest.mark.parametrize("body", ["{", "{'a': 1}", '{"a": NaN}', '{"a": -Infinity}', "[1,]", '"\x01"', "\ufeff{}"])
def test_what_is_not_json_is_refused(echo, body):
    response = echo.post("/echo", content=body.encode(), headers={"Content-Type": "application/json"})
    refused(response, 400, "malformed-json")


def test_body_that_is_not_utf_8_is_refused(echo):
    response = echo.post("/echo", content=b'{"a": "\xff"}', headers={"Content-Type": "application/json"})
    refused(response, 400, "malformed-json")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"a": 1, "a": 2}', "#"),
        ('{"a": [{"b": 1, "b": 1}]}', "#/a/0"),
        ('{"a": 9223372036854775808}', "#/a"),
        ('{"a": ' + "9" * 500 + "}", "#/a"),
        ('{"a": 1e999}', "#/a"),
        ('{"a/b": "\\u0000"}', "#/a~1b"),
        ('{"\\u0000": 1}', "#"),
        ('{"a": "\\ud800"}', "#/a"),
        ("[" * 40 + "]" * 40, "#"),
        ("[" * 490 + "]" * 490, "#"),
    ],
)
def test_json_that_cannot_be_kept_is_refused_with_its_place(echo, body, pointer):
    response = echo.post("/echo", content=body, headers={"Content-Type": "application/json"})
    assert refused(response, 422, "invalid-request")["errors"][0]["pointer"] == pointer


def test_nesting_beyond_the_parser_is_refused():
    app = FastAPI()
    problems.install(app)
    app.add_middleware(Guard, rules=Rules(RULES.allowed_hosts, 1 << 20))
    body = "[" * 200_000
    response = Caller(app).post("/echo", content=body, headers={"Content-Type": "application/json"})
    refused(response, 422, "invalid-request")


@pytest.mark.parametrize("path", ["/nothing?a=%00", "/no%00thing"])
def test_nul_in_an_address_is_refused(echo, path):
    refused(echo.get(path), 422, "invalid-request")


def test_paired_surrogates_are_a_character(echo):
    assert echo.post(
        "/echo", content='{"a": "\\ud83d\\ude00"}', headers={"Content-Type": "application/json"}
    ).is_success


def test_two_hosts_are_refused_though_each_is_allowed(echo):
    refused(echo.get("/nothing", headers=[("Host", "localhost"), ("Host", "localhost")]), 421, "wrong-host")
