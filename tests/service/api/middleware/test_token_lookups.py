"""Tokens that were looked up lately are believed, but not past their end."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from keyed import bearer, key

from tilewright.service.api.middleware import access
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.caller import Caller as CallerOfKey
from tilewright.service.operations.caller import Scope


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/v1/keys/guest", None),
        ("POST", "/v1/keys/guest/rotate", {"grace_s": 0}),
        ("DELETE", "/v1/session", None),
    ],
)
def test_what_ended_here_is_not_believed_here_any_more(keyed, method, path, body):
    token, admin = key("guest"), key("boss", scope=Scope.ADMIN)
    if path == "/v1/session":
        cookie = keyed.post("/v1/session", json={"key": token}).headers["set-cookie"].split(";")[0]
        guest = {"headers": {"Cookie": cookie}}
        ends = guest
    else:
        guest, ends = bearer(token), bearer(admin)
    assert keyed.get("/v1/kernels", **guest).status_code == 200
    assert keyed.request(method, path, **ends, **({"json": body} if body else {})).status_code < 300
    assert keyed.get("/v1/kernels", **guest).status_code == 401


def test_a_token_that_was_being_looked_up_when_it_was_revoked_is_not_believed(keyed, monkeypatch):
    looked_up = []

    def look(token, *, is_key):
        looked_up.append(token)
        lock.forget()  # in the middle of it
        return keys.TokenOwner(CallerOfKey("key ci", Scope.READ), None)

    monkeypatch.setattr(access, "_look_up", look)
    lock = access.AccessControl(clock=lambda: 0.0)
    for _ in range(2):
        asyncio.run(lock._owner({}, "token", is_key=True))
    assert len(looked_up) == 2


def test_a_token_that_is_revoked_while_its_request_waits_at_the_door_is_looked_up_again(monkeypatch):
    looked_up = []

    def look(token, *, is_key):
        looked_up.append(token)
        return keys.TokenOwner(CallerOfKey("key ci", Scope.READ), None)

    monkeypatch.setattr(access, "_look_up", look)
    lock = access.AccessControl(clock=lambda: 0.0)
    asyncio.run(lock._owner({}, "token", is_key=True))

    async def come_in(scope, name):
        lock.forget()

    monkeypatch.setattr(lock.shares, "come_in", come_in)
    asyncio.run(lock._owner({}, "token", is_key=True))
    assert len(looked_up) == 2


@pytest.mark.parametrize(("ends_in_s", "lookups"), [(-1, 2), (3600, 1)])
def test_a_token_is_looked_up_again_once_its_end_has_come(keyed, monkeypatch, ends_in_s, lookups):
    looked_up = []

    def look(token, *, is_key):
        looked_up.append(token)
        return keys.TokenOwner(CallerOfKey("key ci", Scope.READ), datetime.now(UTC) + timedelta(seconds=ends_in_s))

    monkeypatch.setattr(access, "_look_up", look)
    lock = access.AccessControl(clock=lambda: 0.0)
    for _ in range(2):
        asyncio.run(lock._owner({}, "token", is_key=True))
    assert len(looked_up) == lookups


def test_signing_out_without_a_session_has_nobody_looked_up_again(keyed, monkeypatch):
    of = bearer(key())
    assert keyed.get("/v1/kernels", **of).status_code == 200
    keyed.request("DELETE", "/v1/session", headers={"Cookie": f"{sessions.COOKIE}=tw_nobody"})
    monkeypatch.setattr(access, "_look_up", None)
    assert keyed.get("/v1/kernels", **of).status_code == 200
