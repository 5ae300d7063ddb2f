"""Whose request is worked on next, and that what only waits keeps nobody's turn."""

import asyncio
import threading
import time

import httpx
import pytest
from caller import BASE_URL, Caller, bearer, key, new_app
from factories import Rows, tune_four
from sqlalchemy import func, select
from waiting import PATIENCE_S, until

from tilewright.service.api import best_answers
from tilewright.service.api.middleware import turns
from tilewright.service.api.middleware.turns import Turns
from tilewright.service.operations.best_pool import pool as pools
from tilewright.service.operations.caller import Scope
from tilewright.service.settings import settings
from tilewright.service.settings_model import Settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope


async def work(order, one, name, rounds=0):
    await order.take(name)
    one.append(name)
    for _ in range(rounds):
        await asyncio.sleep(0)
    order.give_back(name)


def test_of_each_caller_few_requests_begin_in_a_round():
    async def begun():
        order, one = Turns(), []
        tasks = [asyncio.ensure_future(work(order, one, "evil")) for _ in range(50)]
        tasks += [asyncio.ensure_future(work(order, one, "honest")) for _ in range(2)]
        await asyncio.gather(*tasks)
        return one

    found = asyncio.run(begun())
    assert found.index("honest") <= turns.A_ROUND
    assert found[: turns.A_ROUND + 2].count("honest") == 2
    assert len(found) == 52


def test_refusals_of_one_caller_do_not_keep_anothers_request_waiting(keyed):
    evil, honest = bearer(key("evil"))["headers"], bearer(key("honest"))["headers"]

    async def order():
        transport, ended = httpx.ASGITransport(keyed.app, client=keyed.peer), []
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S) as client:

            async def ask(sends):
                answer = await client.post("/v1/jobs", headers=sends)
                ended.append((sends is honest, answer.status_code))

            await ask(evil)
            await ask(honest)  # both keys are known now
            await asyncio.gather(*(ask(evil) for _ in range(50)), ask(honest))
        return ended[2:]

    ended = asyncio.run(order())
    assert {status for _, status in ended} == {403}
    assert ended.index((True, 403)) <= 3 * turns.A_ROUND


def test_few_requests_of_a_caller_are_worked_on_at_a_time():
    async def most():
        order, working, seen = Turns(), [], []

        async def one():
            await order.take("evil")
            working.append(1)
            seen.append(len(working))
            await asyncio.sleep(0.002)
            working.pop()
            order.give_back("evil")

        await asyncio.gather(*(one() for _ in range(20)))
        return max(seen), len(seen)

    assert asyncio.run(most()) == (turns.WORKING, 20)


def test_who_leaves_while_it_waits_or_as_its_turn_comes_takes_nobodys_turn():
    async def left():
        order, one = Turns(), []
        holding = [asyncio.ensure_future(order.take("evil")) for _ in range(turns.WORKING)]
        await asyncio.gather(*holding)
        waiting = [asyncio.ensure_future(work(order, one, "evil")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        order.give_back("evil")
        await asyncio.sleep(0)  # the round gives the second its turn
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert one == ["evil"]
        for _ in range(turns.WORKING - 1):
            order.give_back("evil")
        return order._working, order._waiting

    working, waiting = asyncio.run(left())
    assert (working, waiting) == ({}, {})


@pytest.mark.parametrize("path", ["/v1/jobs/x", "/v1/kernels"])
def test_an_answered_request_has_given_its_turn_back(keyed, path):
    of = bearer(key(scope=Scope.TUNE))
    assert len({keyed.get(path, **of).status_code for _ in range(2 * turns.WORKING)}) == 1


def test_a_long_answer_that_is_read_slowly_keeps_no_other_request_of_its_key_waiting(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    of = bearer(key(scope=Scope.ADMIN))
    sent = []

    async def both():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:

            async def receive():
                await asyncio.sleep(PATIENCE_S)

            async def send(message):
                if message.get("more_body") and not sent:
                    sent.append((await client.get("/v1/kernels")).status_code)

            token = of["headers"]["Authorization"].encode()
            scope = {"type": "http", "method": "GET", "path": "/v1/export", "raw_path": b"/v1/export", "server": None}
            scope |= {"query_string": b"", "http_version": "1.1", "root_path": "", "client": keyed.peer}
            headers = [(b"host", b"127.0.0.1:8000"), (b"authorization", token)]
            await asyncio.wait_for(keyed.app(scope | {"scheme": "http", "headers": headers}, receive, send), PATIENCE_S)

    asyncio.run(both())
    assert sent == [200]


@pytest.mark.in_turn(2)
def test_what_waits_for_a_prediction_keeps_no_other_request_of_its_key_waiting(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    goes_on, exchange = threading.Event(), pools._Lane._exchange
    monkeypatch.setattr(pools._Lane, "_exchange", lambda *asked: goes_on.wait(PATIENCE_S) and exchange(*asked))
    with session_scope() as session:
        tune_four(Rows(session))
    question = {"shapes": [{"m": 300, "n": 100, "k": 784}], "device_model": "nvidia-h200"}

    async def both():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:
            first = asyncio.ensure_future(client.post("/v1/kernels/gemm/best:batch", json=question))
            await asyncio.to_thread(until, lambda: keyed.app.state.pool.waiting)
            second = await client.get("/v1/kernels")
            was_waiting = not first.done()
            goes_on.set()
            return was_waiting, (await first).status_code, second.status_code

    of = bearer(key())
    assert asyncio.run(both()) == (True, 200, 200)


@pytest.mark.in_turn(2)
def test_what_is_answered_without_its_prediction_waits_for_its_turn(keyed, monkeypatch):
    monkeypatch.setattr(turns, "WORKING", 1)
    monkeypatch.setattr(best_answers, "MEANWHILE_AFTER_S", 0.01)
    goes_on, exchange, look_up = threading.Event(), pools._Lane._exchange, best_answers._looked_up
    monkeypatch.setattr(pools._Lane, "_exchange", lambda *asked: goes_on.wait(PATIENCE_S) and exchange(*asked))
    with session_scope() as session:
        tune_four(Rows(session))
    working, most = [], []

    def looked_up(asked, problems, effort):
        working.append(effort)
        most.append(len(working))
        time.sleep(0.02)  # as long as some take
        working.remove(effort)
        found = look_up(asked, problems, effort)
        if most.count(1) + len(most) > 8:
            goes_on.set()
        return found

    monkeypatch.setattr(best_answers, "_looked_up", looked_up)
    path = "/v1/kernels/gemm/best?device_model=nvidia-h200&shape=m=300,n=100,k="

    async def all_of_them():
        transport = httpx.ASGITransport(keyed.app, client=keyed.peer)
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, timeout=PATIENCE_S, **of) as client:
            return [
                one.status_code for one in await asyncio.gather(*(client.get(path + str(700 + n)) for n in range(6)))
            ]

    of = bearer(key())
    assert asyncio.run(all_of_them()) == [200] * 6
    assert max(most) == 1


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
