"""Sign-in at an OpenID provider, which runs here and speaks HTTP: who gets in, with which rights, and who does not."""

import asyncio
import re
import threading
import time

import httpx
import pytest
from caller import BASE_URL, JOB, bearer, key
from joserfc.jwk import OctKey, RSAKey
from openid_provider import CLIENT, HOST, PUBLIC, RIGHTS, SECRET, begun, come_back, cookie_of, openid_provider, trusting
from sqlalchemy import select
from waiting import PATIENCE_S, until

from tilewright.service.api import openid
from tilewright.service.api.middleware import access
from tilewright.service.operations.access import keys
from tilewright.service.operations.access.sessions import HOST_COOKIE
from tilewright.service.operations.caller import Scope
from tilewright.service.settings_model import Settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope


@pytest.fixture(scope="module")
def provider():
    with openid_provider() as running:
        yield running


@pytest.fixture
def browser(client, provider, monkeypatch, tmp_path):
    before = dict(vars(provider))
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    with trusting(provider.issuer, CLIENT, secret, monkeypatch) as calls:
        yield calls
    vars(provider).update(before)


def signed_in(browser, provider):
    """The browser's answer once it is back."""
    address, cookie = begun(browser)
    return come_back(browser, provider.authorized(address), cookie)


def problem_of(answer):
    assert answer.status_code == 303
    assert HOST_COOKIE + "=" not in answer.headers.get("set-cookie", "")
    return re.search(r"problem=([a-z-]+)", answer.headers["location"])[1]


def test_who_signs_in_gets_a_session_with_the_rights_of_its_groups(browser, provider):
    assert 'id="openid"' in browser.get("/sign-in", headers=HOST).text
    address, cookie = begun(browser)
    assert address.startswith(f"{provider.issuer}/authorize?")
    for word in ("HttpOnly", "SameSite=lax", "Secure", "Max-Age=600"):
        assert word in cookie
    answer = come_back(browser, provider.authorized(address), cookie)
    assert answer.status_code == 200
    assert 'content="0;url=/jobs"' in answer.text
    (given,) = [c for c in answer.headers.get_list("set-cookie") if c.startswith(f"{HOST_COOKIE}=")]
    for word in ("HttpOnly", "SameSite=strict", "Secure"):
        assert word in given
    session = cookie_of(answer)
    assert browser.get("/v1/jobs", headers=session).status_code == 200
    assert browser.get("/v1/keys", headers=session).status_code == 403
    refused = browser.post("/v1/jobs", json=JOB, headers=session)
    assert refused.status_code == 422, "it may, but there is no device"
    with session_scope() as opened:
        (made,) = keys.keys(opened)
        assert (made.name, made.scope, made.project) == ("oidc:alice", "tune", "vision")
        recorded = opened.scalars(select(models.AuditEntry).where(models.AuditEntry.actor == "key oidc:alice")).one()
        assert recorded.changed.keys() == {"api_keys"}


def test_a_second_sign_in_has_the_same_key_and_the_rights_of_now(browser, provider):
    signed_in(browser, provider)
    provider.claims = {"sub": "alice", "groups": ["staff", "ops", "vision"]}
    admin = cookie_of(signed_in(browser, provider))
    (listed,) = browser.get("/v1/keys", headers=admin).json()["items"]
    assert (listed["name"], listed["scope"], listed["project"]) == ("oidc:alice", "admin", "default")


def test_who_has_no_rule_or_a_revoked_key_does_not_get_in(browser, provider):
    provider.claims = {"sub": "bob", "groups": "others"}
    assert problem_of(signed_in(browser, provider)) == "no-rights"
    provider.claims = {"sub": "bob"}
    assert problem_of(signed_in(browser, provider)) == "no-rights"
    provider.claims = {"sub": "bob", "groups": ["staff"]}
    session = cookie_of(signed_in(browser, provider))
    of = bearer(key("boss", scope=Scope.ADMIN))["headers"] | HOST
    assert browser.request("DELETE", "/v1/keys/oidc:bob", headers=of).status_code == 200
    assert browser.get("/v1/kernels", headers=session).status_code == 401
    assert problem_of(signed_in(browser, provider)) == "no-rights"


def test_groups_may_be_told_apart_from_the_token(browser, provider):
    provider.claims, provider.told_apart = {"sub": "carol"}, {"sub": "carol", "groups": ["vision"]}
    address, cookie = begun(browser)
    assert "scope=openid+profile+email&" in address, "a scope that the provider does not have is not asked for"
    answer = come_back(browser, provider.authorized(address), cookie)
    assert browser.get("/v1/jobs", headers=cookie_of(answer)).status_code == 200
    provider.told_apart = {"sub": "mallory", "groups": ["ops"]}
    assert problem_of(signed_in(browser, provider)) == "no-answer", "of another person"
    provider.claims, provider.told_apart = {"sub": "carol", "groups": []}, {"sub": "carol", "groups": ["ops"]}
    assert problem_of(signed_in(browser, provider)) == "no-rights", "what the token says counts"


@pytest.mark.parametrize(
    ("sub", "name"),
    [("00u1-a.b", "oidc:00u1-a.b"), ("auth0|7", "oidc:"), ("boss ", "oidc:"), ("../x", "oidc:"), ("é" * 80, "oidc:")],
)
def test_a_persons_name_is_never_that_of_a_key(browser, provider, sub, name):
    provider.claims = {"sub": sub, "groups": ["staff"]}
    signed_in(browser, provider)
    with session_scope() as opened:
        (made,) = keys.keys(opened)
    assert made.name == name or re.fullmatch(r"oidc:[0-9a-f]{32}", made.name)


BENT = {
    "another audience": lambda c: c | {"aud": "another"},
    "another issuer": lambda c: c | {"iss": "https://evil.example"},
    "another nonce": lambda c: c | {"nonce": "another"},
    "no nonce": lambda c: {name: value for name, value in c.items() if name != "nonce"},
    "out of date": lambda c: c | {"exp": int(time.time()) - 120},
    "no end": lambda c: {name: value for name, value in c.items() if name != "exp"},
    "another party": lambda c: c | {"aud": [CLIENT, "another"], "azp": "another"},
    "nobody": lambda c: {name: value for name, value in c.items() if name != "sub"},
    "another access token": lambda c: c | {"at_hash": "AAAA"},
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("bend", BENT.values(), ids=BENT)
def test_a_token_that_says_something_else_lets_nobody_in(browser, provider, bend):
    provider.bend = bend
    assert problem_of(signed_in(browser, provider)) == "no-answer"
    with session_scope() as opened:
        assert keys.keys(opened) == []


def test_a_token_that_another_has_signed_lets_nobody_in(browser, provider):
    provider.signed_by = RSAKey.generate_key(2048, {"kid": "first"})
    assert problem_of(signed_in(browser, provider)) == "no-answer"
    provider.signed_by, provider.algorithm = OctKey.import_key(SECRET, {"kid": "first"}), "HS256"
    assert problem_of(signed_in(browser, provider)) == "no-answer"


def test_a_new_key_of_the_provider_is_asked_for(browser, provider, monkeypatch):
    assert signed_in(browser, provider).status_code == 200
    monkeypatch.setattr(openid, "AGAIN_S", 0.0)
    provider.keys = [RSAKey.generate_key(2048, {"kid": "second"})]
    assert signed_in(browser, provider).status_code == 200


def test_what_belongs_to_another_sign_in_lets_nobody_in(browser, provider):
    (mine, cookie), (other, others_cookie) = begun(browser), begun(browser)
    back = provider.authorized(mine)
    assert problem_of(come_back(browser, back, others_cookie)) == "no-answer", "of another browser"
    assert problem_of(come_back(browser, back, "nothing=1")) == "no-answer"
    stolen = provider.authorized(other).partition("code=")[2].partition("&")[0]
    mixed = re.sub(r"code=[^&]+", f"code={stolen}", back)
    assert problem_of(come_back(browser, mixed, cookie)) == "no-answer", "PKCE and nonce are of the other"
    assert come_back(browser, provider.authorized(mine), cookie).status_code == 200
    used = provider.authorized(mine)
    assert come_back(browser, used, cookie).status_code == 200
    assert problem_of(come_back(browser, used, cookie)) == "no-answer", "a code counts once"
    foreign = provider.authorized(mine).replace(provider.issuer.rpartition(":")[2], "1")
    assert problem_of(come_back(browser, foreign, cookie)) == "no-answer", "another provider's answer"


def test_it_leads_only_to_this_server(browser, provider):
    address, cookie = begun(browser, "//evil.example")
    answer = come_back(browser, provider.authorized(address), cookie)
    assert 'content="0;url=/"' in answer.text
    bent = cookie.split(";")[0].replace("following=%2F", "following=https%3A%2F%2Fevil.example")
    assert "evil" not in come_back(browser, provider.authorized(address), bent).text


def test_a_provider_that_is_not_there_or_is_another_is_told(browser, provider):
    known = openid.provider()
    known._issuer = "http://127.0.0.1:9"
    answer = browser.get("/sign-in/openid", headers=HOST)
    assert problem_of(answer) == "no-answer"
    known._issuer = f"http://localhost:{provider.server_address[1]}"
    assert problem_of(browser.get("/sign-in/openid", headers=HOST)) == "no-answer", "its documents name another"


def test_a_provider_that_hangs_keeps_few_threads(browser, monkeypatch):
    waiting, goes_on = [], threading.Event()

    def hangs(_self, _attempt):
        waiting.append(1)
        assert goes_on.wait(PATIENCE_S)
        raise openid.OpenIDError

    monkeypatch.setattr(openid.Provider, "address", hangs)

    async def many():
        transport = httpx.ASGITransport(browser.app, client=("192.0.2.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=HOST) as caller:
            begun = [asyncio.ensure_future(caller.get("/sign-in/openid", timeout=PATIENCE_S)) for _ in range(60)]
            await asyncio.to_thread(until, lambda: len(waiting) == access.ABROAD_AT_ONCE)
            other = await caller.get("/sign-in")
            at_once = len(waiting)
            goes_on.set()
            return other.status_code, at_once, {(await one).status_code for one in begun}

    assert asyncio.run(many()) == (200, access.ABROAD_AT_ONCE, {303})


def test_without_a_provider_there_is_no_such_sign_in(client):
    assert client.get("/sign-in/openid").status_code == 404
    assert 'id="openid"' not in client.get("/sign-in").text


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"oidc_issuer": "http://login.example"}, "https"),
        ({"oidc_rights": ""}, "rules"),
        ({"oidc_rights": "ops=root"}, "VALUE=SCOPE"),
        ({"oidc_client_id": None}, "OIDC_CLIENT_ID"),
        ({"public_url": None}, "PUBLIC_URL"),
    ],
)
def test_settings_that_are_not_enough_are_refused(changed, word):
    right = {
        "require_keys": True,
        "public_url": PUBLIC,
        "oidc_issuer": "https://login.example",
        "oidc_client_id": CLIENT,
        "oidc_rights": RIGHTS,
    }
    assert Settings(**right).oidc_rights[1] == ("vision", "tune", "vision")
    with pytest.raises(ValueError, match=word):
        Settings(**right | changed)
