"""Browsers: the sign-in page, its form, sessions, and a server at a public address."""

import pytest
from caller import Caller, new_app
from keyed import bearer, key
from sqlalchemy import func, select

from tilewright.service.operations.caller import Scope
from tilewright.service.settings import settings
from tilewright.service.settings_model import Settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope


def test_a_browser_without_a_session_is_led_to_the_sign_in_page(keyed):
    led = keyed.get("/jobs?state=done", headers={"Accept": "text/html,*/*"})
    assert (led.status_code, led.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Fstate%3Ddone")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/jobs?state=done", "/jobs?state=done"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil", "/"),
    ],
)
def test_the_sign_in_page_leads_only_to_this_server(keyed, path, shown):
    page = keyed.get("/sign-in", params={"next": path}).text
    assert f'name="next" value="{shown}"' in page
    led = keyed.post("/sign-in", data={"key": key(), "next": path})
    assert (led.status_code, led.headers["location"]) == (303, shown)


def test_the_form_signs_in_and_out_without_a_script(keyed):
    wrong = keyed.post("/sign-in", data={"key": "tw_" + "x" * 40, "next": "/jobs"})
    assert (wrong.status_code, wrong.headers["location"]) == (303, "/sign-in?next=%2Fjobs&problem=wrong-key")
    assert "set-cookie" not in wrong.headers
    assert "This key is not valid" in keyed.get(wrong.headers["location"]).text
    led = keyed.post("/sign-in", data={"key": f" {key()} ", "next": "/jobs"})
    session = {"Cookie": led.headers["set-cookie"].split(";")[0]}
    assert keyed.get("/v1/kernels", headers=session).status_code == 200
    assert keyed.post("/sign-out", headers=session).headers["location"] == "/sign-in"
    assert keyed.get("/v1/kernels", headers=session).status_code == 401


def test_a_second_sign_in_ends_the_session_before(keyed):
    token = key()
    first, second = ({"Cookie": ""}, {"Cookie": ""})
    first["Cookie"] = keyed.post("/sign-in", data={"key": token}).headers["set-cookie"].split(";")[0]
    assert keyed.get("/v1/kernels", headers=first).status_code == 200
    again = keyed.post("/sign-in", data={"key": token}, headers=first)
    second["Cookie"] = again.headers["set-cookie"].split(";")[0]
    assert keyed.get("/v1/kernels", headers=second).status_code == 200
    assert keyed.get("/v1/kernels", headers=first).status_code == 401
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(models.BrowserSession)) == 1


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"json": {"key": "tw_something"}}, 415),
        ({"data": {f"f{n}": "x" for n in range(9)}}, 422),
        ({"data": {"next": "/"}}, 303),
        ({"data": {"key": "tw_" + "x" * 9000}}, 413),
        ({"data": {"key": "tw_something"}, "headers": {"Origin": "https://evil.example"}}, 403),
        ({"data": {"key": "tw_something"}, "headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
    ],
)
def test_a_form_that_no_page_of_ours_sends_gives_no_session(keyed, sent, status):
    answer = keyed.post("/sign-in", **sent)
    assert answer.status_code == status
    assert "set-cookie" not in answer.headers


def test_a_browsers_form_comes_with_its_origin(keyed):
    """Under `no-referrer`, which all other pages have, it would come with `Origin: null`."""
    assert keyed.get("/sign-in").headers["referrer-policy"] == "same-origin"


def test_behind_tls_at_a_public_address_the_cookie_is_secure_and_the_host_allowed(keyed, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_PUBLIC_URL", "https://Tiles.example:443/")
    settings.cache_clear()
    behind = Caller(new_app(), peer=keyed.peer)
    proxied = {"Host": "tiles.example", "Origin": "https://tiles.example", "X-Forwarded-For": "203.0.113.9"}
    led = behind.post("/sign-in", data={"key": key()}, headers=proxied)
    assert (led.status_code, led.headers["location"]) == (303, "/")
    session, *attributes = led.headers["set-cookie"].split("; ")
    assert session.startswith("__Host-tilewright_session=tw_")
    assert {"Secure", "Path=/", "HttpOnly"} <= set(attributes)
    assert not any(attribute.startswith("Domain") for attribute in attributes)
    plain = {"Cookie": session.removeprefix("__Host-")}
    assert behind.get("/v1/kernels", headers=proxied | plain).status_code == 401, "a neighbour's page could have set it"
    shown = behind.get("/demand", headers=proxied | {"Cookie": session}).text
    assert "https://tiles.example/v1/kernels/gemm/best" in shown


@pytest.mark.parametrize("url", ["tiles.example", "ftp://tiles.example", "https://tiles.example/sub", "https://a@b.c"])
def test_a_public_address_that_no_browser_would_name_is_refused(monkeypatch, url):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    with pytest.raises(ValueError, match="public_url"):
        Settings(public_url=url)


def test_a_public_address_needs_keys():
    with pytest.raises(ValueError, match="needs TILEWRIGHT_REQUIRE_KEYS"):
        Settings(public_url="https://tiles.example")


def test_a_session_ends_when_its_browser_signs_out(keyed):
    cookie = {"Cookie": keyed.post("/v1/session", json={"key": key()}).headers["set-cookie"].split(";")[0]}
    assert keyed.request("DELETE", "/v1/session", headers=cookie).status_code == 204
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(models.BrowserSession)) == 0


def test_an_admin_ends_one_session_of_several_at_once(keyed):
    boss = bearer(key("boss", scope=Scope.ADMIN))
    cookies = []
    for _ in range(2):
        made = keyed.post("/v1/session", json={"key": key(f"guest-{len(cookies)}")}).headers["set-cookie"]
        cookies.append({"headers": {"Cookie": made.split(";")[0]}})
    listed = keyed.get("/v1/sessions", **boss).json()["items"]
    assert [one["key"] for one in listed] == ["guest-1", "guest-0"]
    assert keyed.get("/v1/sessions", **cookies[0]).status_code == 403
    ended = f"/v1/sessions/{listed[0]['id']}"
    assert f'hx-delete="{ended}"' in keyed.get("/access", **boss).text
    assert [keyed.get("/v1/kernels", **one).status_code for one in cookies] == [200, 200]
    assert [keyed.request("DELETE", ended, **boss).status_code for _ in range(2)] == [204, 404]
    assert [keyed.get("/v1/kernels", **one).status_code for one in cookies] == [200, 401]
