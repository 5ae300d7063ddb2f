"""A server that is asked to stop, and one whose database is away or not migrated."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from caller import Caller, bearer, key, new_app
from factories import Rows
from fleet import free_port
from sqlalchemy import select, text
from waiting import PATIENCE_S

from tilewright.service.client import Client
from tilewright.service.errors import DatabaseUnavailableError
from tilewright.service.operations.access import audit
from tilewright.service.settings import settings
from tilewright.service.store import models, schema
from tilewright.service.store import session as store_session
from tilewright.service.store.session import session_scope

BODY = json.dumps({"shapes": [{"m": 100, "n": 100, "k": 100}], "device_model": "nvidia-h200"}).encode()
HEAD = (
    f"POST /v1/kernels/gemm/best:batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
).encode()


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.in_turn(3)
def test_a_stopping_server_answers_what_it_has_begun(fleet):
    with fleet.session() as session:
        Rows(session).best()
    port = free_port()
    process = fleet.start_api(port, TILEWRIGHT_LOG_FORMAT="json")
    with Client(f"http://127.0.0.1:{port}") as client:
        fleet.until(client.is_ready)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as begun:
        begun.sendall(HEAD + BODY[:10])
        assert (
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S).status_code == 200
        )  # the first has arrived
        process.terminate()
        fleet.until(lambda: refuses_connections(port))
        begun.sendall(BODY[10:])
        answer = begun.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert process.wait(PATIENCE_S) == 0
    with fleet.session() as session:
        assert session.scalars(select(models.Demand.count)).all() == [1]
    lines = (fleet.folder / "api.log").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines if "best:batch" in line] == [200]
    assert not any("exception" in json.loads(line) for line in lines)


@pytest.fixture
def away():
    store_session.configure("postgresql://someone:secret@127.0.0.1:9/none")
    yield Caller(new_app())
    store_session.configure(None)


def test_calls_are_refused_as_unavailable_without_naming_the_database(away):
    response = away.get("/v1/jobs")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert "someone" not in response.text


def test_it_lives_but_is_not_ready(away):
    assert away.get("/health").status_code == 200
    response = away.get("/ready")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/not-ready")


def test_first_page_says_so_to_people(away):
    response = away.get("/")
    assert response.status_code == 503
    assert "database does not answer" in response.text


def test_database_without_migrations_is_not_ready(empty_database_url):
    store_session.configure(empty_database_url)
    try:
        response = Caller(new_app()).get("/ready")
    finally:
        store_session.configure(None)
    assert response.status_code == 503
    assert "tilewright db upgrade" in response.json()["detail"]


def test_a_database_that_takes_no_changes_is_not_ready(database_url, configured):
    assert Caller(new_app()).get("/ready").status_code == 200
    with session_scope() as session:
        name = session.scalar(text("SELECT current_database()"))
        session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    store_session.configure(configured)  # with new connections
    response = Caller(new_app()).get("/ready")
    assert (response.status_code, response.json()["type"]) == (503, "/problems/not-ready")
    assert "takes no changes" in response.json()["detail"]


def test_tables_of_a_newer_version_are_named_so(database_url, configured):
    with session_scope() as session:
        session.execute(text("UPDATE tilewright_version SET version_num = '9999'"))
    with pytest.raises(DatabaseUnavailableError, match="newer Tilewright"):
        schema.upgrade(configured)


REFUSED = [("key ci", "POST (refused) 403"), ("nobody", "GET (refused) 401 x 2")]
READ = [("key ci", "GET /v1/kernels 200 x 3")]


@pytest.mark.parametrize(("kinds", "expected"), [("changes", []), ("refusals", REFUSED), ("all", REFUSED + READ)])
def test_what_is_asked_for_is_recorded_and_equal_requests_once(client, monkeypatch, kinds, expected):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_RECORD_REQUESTS", kinds)
    settings.cache_clear()
    caller = Caller(new_app())
    of = bearer(key())
    for _ in range(3):
        assert caller.get("/v1/kernels", **of).status_code == 200
    for secret in ("tw_one", "tw_two"):
        assert caller.get(f"/v1/kernels?key={secret}", **bearer(secret)).status_code == 401
    assert caller.post("/v1/jobs", json={}, **of).status_code == 403
    assert caller.get("/health").status_code == 200
    caller.app.state.record.flush()
    with session_scope() as session:
        entries = audit.entries(session, limit=50, cursor=None).items
    found = [(one.actor, one.action) for one in entries if one.changed == {}]
    assert sorted(found) == sorted(expected)
    settings.cache_clear()
