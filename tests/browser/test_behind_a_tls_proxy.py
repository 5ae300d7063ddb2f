"""The documented set-up: keys, and a proxy with TLS in front; the way in and out, with JavaScript and without."""

import re
import shutil
from urllib.parse import urlsplit

import pytest
from accessible import serious
from openid_provider import CLIENT, openid_provider
from tls_proxy import certificate_of, tls_proxy

from tilewright.service.api import openid
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

pytestmark = pytest.mark.browser


@pytest.fixture
def proxied(configured, monkeypatch, tmp_path):
    """The proxy and the token of the only key. Stands before `address`: the application reads its settings once."""
    with tls_proxy(certificate_of("localhost", tmp_path)) as proxy:
        monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
        monkeypatch.setenv("TILEWRIGHT_PUBLIC_URL", f"https://localhost:{proxy.port}")
        settings.cache_clear()
        with transaction() as session:
            token = keys.create_key(session, KeyRequest(name="ci", scope=Scope.TUNE)).token
        yield proxy, token
        monkeypatch.undo()
        settings.cache_clear()


@pytest.mark.in_turn(2)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("scripts", [True, False], ids=["javascript", "no javascript"])
def test_a_key_leads_in_and_stands_in_no_address(proxied, address, tabs_at, expect, scripts):
    proxy, token = proxied
    proxy.behind = (urlsplit(address).hostname, urlsplit(address).port)
    with tabs_at(f"https://localhost:{proxy.port}") as open_tab:
        tab = open_tab("/jobs?state=done", ignore_https_errors=True, java_script_enabled=scripts)
        tab.wait_for_url(re.compile(r"/sign-in\?next="))
        tab.get_by_label("Access key").fill(token)
        tab.keyboard.press("Enter")
        tab.wait_for_url(re.compile(r"/jobs\?state=done$"))
        (cookie,) = tab.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        tab.get_by_role("link", name="Sign in or out").click()
        expect(tab.locator("#signed-in")).to_contain_text("Its scope is tune")
        tab.get_by_role("button", name="Sign out").click()
        expect(tab.locator("#signed-in")).to_have_count(0)
        assert tab.context.cookies() == []
    assert not [line for line in proxy.seen if token in line]
    assert any(line.startswith("POST /sign-in ") for line in proxy.seen)


@pytest.fixture
def provided(proxied, monkeypatch):
    """An OpenID provider of another site, whose staff may tune."""
    with openid_provider() as provider:
        provider.has_secret = False  # PKCE alone
        provider.claims = {"sub": "alice", "groups": ["staff"]}
        given = {"ISSUER": provider.issuer, "CLIENT_ID": CLIENT, "RIGHTS": "staff=tune"}
        for name, value in given.items():
            monkeypatch.setenv(f"TILEWRIGHT_OIDC_{name}", value)
        settings.cache_clear()
        openid.provider.cache_clear()
        yield provider
        openid.provider.cache_clear()


@pytest.mark.in_turn(2)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("scripts", [True, False], ids=["javascript", "no javascript"])
def test_an_account_of_another_site_leads_in_with_a_strict_cookie(proxied, provided, address, tabs_at, expect, scripts):
    proxy, _ = proxied
    proxy.behind = (urlsplit(address).hostname, urlsplit(address).port)
    with tabs_at(f"https://localhost:{proxy.port}", provided.issuer) as open_tab:
        tab = open_tab("/jobs?state=done", ignore_https_errors=True, java_script_enabled=scripts)
        tab.wait_for_url(re.compile(r"/sign-in\?next="))
        tab.get_by_role("link", name="account of your organisation").click()
        tab.wait_for_url(re.compile(r"/jobs\?state=done$"))
        (cookie,) = tab.context.cookies()
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        tab.get_by_role("link", name="Sign in or out").click()
        expect(tab.locator("#signed-in")).to_contain_text("key oidc:alice")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_signed_in_browser_can_change_things(proxied, address, tabs_at):
    proxy, token = proxied
    proxy.behind = (urlsplit(address).hostname, urlsplit(address).port)
    with tabs_at(f"https://localhost:{proxy.port}") as open_tab:
        tab = open_tab("/sign-in?next=/schedules", ignore_https_errors=True)
        tab.get_by_label("Access key").fill(token)
        tab.get_by_role("button", name="Sign in").click()
        tab.wait_for_url(re.compile(r"/schedules$"))
        tab.expected = {422}
        status = tab.evaluate(
            "fetch('/v1/jobs', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'})"
            ".then(answer => answer.status)"
        )
    assert status == 422, "judged by its content, and not refused for its origin"


@pytest.fixture
def token(configured, monkeypatch):
    """The token of the only key. Stands before `open_tab` in a test's arguments: the server reads its settings once."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    with transaction() as session:
        made = keys.create_key(session, KeyRequest(name="ci", scope=Scope.TUNE)).token
    yield made
    monkeypatch.delenv("TILEWRIGHT_REQUIRE_KEYS")
    settings.cache_clear()


def test_a_key_leads_to_the_page_that_was_wanted_and_the_session_is_ended(token, open_tab, expect):
    tab = open_tab("/jobs?state=done")
    tab.wait_for_url(re.compile(r"/sign-in\?next="))
    assert serious(tab) == []
    tab.get_by_label("Access key").fill(token)
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/jobs\?state=done$"))
    assert "tw_" not in tab.evaluate("document.cookie + JSON.stringify(localStorage)")
    tab.get_by_role("link", name="Sign in or out").click()
    expect(tab.locator("#signed-in")).to_contain_text("Its scope is tune")
    assert serious(tab) == []
    tab.get_by_role("button", name="Sign out").click()
    expect(tab.locator("#signed-in")).to_have_count(0)
    tab.goto("/jobs")
    tab.wait_for_url(re.compile(r"/sign-in"))


def test_a_wrong_key_is_refused_beside_the_field(token, open_tab, expect):
    tab = open_tab("/sign-in")
    tab.get_by_label("Access key").fill("tw_" + "x" * 40)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("status").filter(has_text="This key is not valid")).to_be_visible()
    tab.get_by_label("Access key").fill("tw_" + "y" * 40)
    tab.get_by_role("button", name="Sign in").click()
    expect(tab.get_by_role("status").filter(has_text="This key is not valid")).to_be_visible()
    assert "tw_" not in tab.url
    tab.goto("/")
    tab.wait_for_url(re.compile(r"/sign-in"))
