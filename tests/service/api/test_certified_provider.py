"""Sign-in at oidc-provider, a certified OpenID provider of others, which runs here: `make test-openid` installs it."""

import html
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from caller import JOB
from openid_provider import HOST, PUBLIC, RETURN, SECRET, begun, come_back, cookie_of, trusting

from tilewright.service.operations.access import keys
from tilewright.service.store.session import session_scope

PACKAGE = os.environ.get("OPENID_PROVIDER")
SCRIPT = Path(__file__).parent / "certified" / "provider.mjs"
pytestmark = [
    pytest.mark.skipif(not PACKAGE, reason="make test-openid installs the provider, and sets OPENID_PROVIDER"),
    pytest.mark.filterwarnings("ignore:EdDSA is deprecated"),  # RFC 9864 wants its curve named; providers go on with it
]


@pytest.fixture(scope="module")
def issuer():
    words = ["node", SCRIPT, Path(PACKAGE).resolve(), SECRET, RETURN]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(params=["tilewright", "es", "ed", "open"])
def browser(client, issuer, request, monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    with trusting(issuer, request.param, None if request.param == "open" else secret, monkeypatch) as calls:
        yield calls


def agreed(address, login):
    """Where the provider sends its person back to who fills in its forms."""
    with httpx.Client(trust_env=False) as person:
        while not address.startswith(PUBLIC):
            page = person.get(address)
            if page.is_redirect:
                address = urljoin(address, page.headers["location"])
                continue
            assert page.status_code == 200, page.text
            action = html.unescape(re.search(r'action="([^"]+)"', page.text)[1])
            prompt = re.search(r'name="prompt" value="([^"]+)"', page.text)[1]
            sent = person.post(urljoin(address, action), data={"prompt": prompt, "login": login, "password": "any"})
            address = urljoin(address, sent.headers["location"])
    return address


def test_its_people_get_the_rights_of_their_groups(browser):
    address, cookie = begun(browser)
    session = cookie_of(come_back(browser, agreed(address, "alice"), cookie))
    assert browser.get("/v1/jobs", headers=session).status_code == 200
    assert browser.get("/v1/keys", headers=session).status_code == 403
    assert browser.post("/v1/jobs", json=JOB, headers=session).status_code == 422, "it may, but there is no device"
    with session_scope() as opened:
        (made,) = keys.keys(opened)
        assert (made.name, made.scope, made.project) == ("oidc:alice", "tune", "vision")
    address, cookie = begun(browser)
    assert "no-rights" in come_back(browser, agreed(address, "bob"), cookie).headers["location"]


def test_its_codes_count_once_and_for_the_browser_that_began(browser):
    address, cookie = begun(browser)
    back = agreed(address, "alice")
    assert "no-answer" in come_back(browser, back, begun(browser)[1]).headers["location"]
    assert come_back(browser, back, cookie).status_code == 200
    assert "no-answer" in come_back(browser, back, cookie).headers["location"]
    refused = browser.get(f"{RETURN.removeprefix(PUBLIC)}?error=access_denied&state=x", headers=HOST)
    assert refused.status_code == 303
