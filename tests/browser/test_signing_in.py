"""A server that demands keys, in a browser: the way in with a key, a wrong key, and the way out."""

import re

import pytest
from accessible import serious

from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings

pytestmark = pytest.mark.browser


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
