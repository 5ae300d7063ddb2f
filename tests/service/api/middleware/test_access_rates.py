"""How much one caller may ask, and how long a token that was looked up is believed."""

import asyncio
import itertools
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from caller import BASE_URL, Caller, bearer, key, new_app
from hypothesis import given
from hypothesis import strategies as st

from tilewright.service.api.middleware import access, shares
from tilewright.service.api.middleware.shares import Buckets
from tilewright.service.errors import TooManyRequestsError
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.access.keys import TokenOwner
from tilewright.service.operations.caller import Caller as CallerOfKey
from tilewright.service.operations.caller import Scope
from tilewright.service.settings import settings


@pytest.mark.usefixtures("slow_rate")
def test_too_many_requests_wait_as_long_as_they_are_told(keyed):
    hurried = Caller(new_app(), peer=keyed.peer)
    of = bearer(key())
    answers = [hurried.get("/v1/kernels", **of) for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 15


@pytest.mark.parametrize(("path", "most"), [("/v1/session", 1 << 10), ("/sign-in", 1 << 13), ("/health", 1 << 16)])
def test_a_body_is_small_where_everybody_may_post(keyed, path, most):
    kind = "application/x-www-form-urlencoded" if path == "/sign-in" else "application/json"
    for size, is_taken in [(most, True), (most + 1, False)]:
        body = b'{"a":"' + b"x" * (size - 8) + b'"}'
        answer = keyed.post(path, content=body, headers={"Content-Type": kind})
        assert (answer.status_code != 413) is is_taken, answer.text


@pytest.mark.usefixtures("slow_rate")
@pytest.mark.parametrize(
    ("method", "path", "answers"),
    [
        ("POST", "/v1/session", [422, 422, 429]),
        ("POST", "/sign-in", [415, 415, 429]),
        ("GET", "/sign-in", [200, 200, 429]),
        ("GET", "/health", [200, 200, 200]),
        ("GET", "/static/style.css", [200, 200, 200]),
    ],
)
def test_who_signs_in_without_a_key_is_counted_and_who_looks_for_life_is_not(keyed, method, path, answers):
    hurried = Caller(new_app(), peer=keyed.peer)
    body = {"json": {}} if method == "POST" else {}
    assert [hurried.request(method, path, **body).status_code for _ in answers] == answers
    assert hurried.get("/v1/kernels", **bearer(key())).status_code == 200, "a key has a rate of its own"


@pytest.mark.usefixtures("slow_rate")
def test_a_long_body_of_one_without_a_key_counts_as_many_requests(keyed, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_OPEN_READS", "true")
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "20")  # ten at once
    settings.cache_clear()
    reader = Caller(new_app(), peer=keyed.peer)
    long = {"content": b'{"shapes": [' + b" " * 6000 + b"]}", "headers": {"Content-Type": "application/json"}}
    answers = [reader.post("/v1/kernels/gemm/best:batch", **long).status_code for _ in range(2)]
    assert answers == [422, 429], "five and one, and of the four that are left one"
    large = {**long, "content": b" " * ((1 << 16) + 1)}
    assert Caller(new_app(), peer=keyed.peer).post("/v1/kernels/gemm/best:batch", **large).status_code == 413
    with_key = large["headers"] | bearer(key())["headers"]
    answer = reader.post("/v1/kernels/gemm/best:batch", content=b'{"shapes": []}' + b" " * (1 << 17), headers=with_key)
    assert answer.status_code == 422, "a key may send what the settings allow"


def guess(keyed, count=20):
    return [keyed.get("/v1/kernels", **bearer(f"tw_guess-{n}")).status_code for n in range(count)]


def test_who_guesses_tokens_has_to_wait_and_keeps_no_good_key_out(keyed):
    found = guess(keyed)
    assert (found[0], found[-1]) == (401, 429)
    assert keyed.get("/v1/kernels", **bearer(key())).status_code == 200, "behind a proxy all have one address"
    assert guess(keyed, 1) == [429]


def test_wrong_tokens_at_the_sign_in_count_like_others(keyed):
    found = [keyed.post("/v1/session", json={"key": f"tw_guess-{n}"}) for n in range(20)]
    assert (found[0].status_code, found[-1].status_code) == (401, 429)
    assert int(found[-1].headers["retry-after"]) >= 1
    assert guess(keyed, 1) == [429]
    assert keyed.post("/v1/session", json={"key": key()}).status_code == 204


def test_of_a_flood_of_guesses_few_are_looked_up_at_a_time(keyed, monkeypatch):
    looking, most = [], []

    def look(token, *, is_key):
        looking.append(token)
        most.append(len(looking))
        time.sleep(0.002)  # as long as a look-up takes
        looking.remove(token)

    monkeypatch.setattr(access, "_look_up", look)
    lock = access.AccessControl(clock=lambda: 0.0)

    async def flood(count):
        seen = await asyncio.gather(
            *[lock._owner({}, f"{n}", is_key=True) for n in range(count)], return_exceptions=True
        )
        return [type(error) for error in seen]

    asyncio.run(flood(access.WRONG_PER_MINUTE))
    most.clear()
    assert set(asyncio.run(flood(40))) == {TooManyRequestsError}
    assert (max(most), len(most)) == (access.GUESSES_AT_ONCE, 40)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.floats(1, 600))
def test_no_caller_gets_more_than_its_rate_and_its_burst(gaps, per_minute):
    now = 0.0
    buckets = Buckets(per_minute, clock=lambda: now)
    allowed = 0
    for gap in gaps:
        now += gap
        allowed += buckets.wait_s("one") == 0
    assert allowed <= max(1.0, per_minute / 2) + sum(gaps) * per_minute / 60 + 1e-6


def test_waiting_as_long_as_told_is_enough():
    now = 0.0
    buckets = Buckets(2, clock=lambda: now)
    while (wait_s := buckets.wait_s("one")) == 0:
        pass
    now += wait_s
    assert buckets.wait_s("one") == 0


def test_names_beyond_those_kept_push_out_the_least_recent():
    now = 0.0
    buckets = Buckets(2, clock=lambda: now)
    assert buckets.wait_s("kept") == 0
    for number in range(shares.REMEMBERED + 100):
        now += 1e-6
        buckets.wait_s(f"stranger {number}")
        assert buckets.wait_s("kept") > 0
    assert len(buckets._left) == shares.REMEMBERED


@pytest.mark.usefixtures("slow_rate")
def test_refusals_are_held_back_from_who_goes_on_and_from_nobody_else(keyed, monkeypatch):
    monkeypatch.setattr(shares, "REFUSALS_PER_MINUTE", 4)
    held_s = []

    async def wait(_for, **named):
        held_s.append(named["timeout"])

    monkeypatch.setattr("tilewright.service.api.middleware.shares.asyncio.wait", wait)
    hurried = Caller(new_app(), peer=keyed.peer)
    of, others = bearer(key()), bearer(key("other"))
    answers = [hurried.get("/v1/kernels", **of).status_code for _ in range(7)]
    assert answers == [200, 200, 429, 429, 429, 429, 429]
    assert held_s == [shares.HELD_S] * 3  # the first two came at once
    assert hurried.get("/v1/kernels", **others).status_code == 200
    assert len(held_s) == 3


async def answered_at_once(app, count, peer, sends, **of):
    """The statuses of so many requests of one caller, all of them sent before any body is."""
    bodies = asyncio.Event()

    async def body():
        await bodies.wait()
        yield b"{}"

    transport = httpx.ASGITransport(app, client=peer)
    async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as caller:
        asked = [asyncio.ensure_future(caller.post("/v1/jobs", content=body(), headers=sends)) for _ in range(count)]
        refused = [
            (await one).status_code for one in itertools.islice(asyncio.as_completed(asked), count - shares.AT_ONCE)
        ]
        other = await caller.post("/v1/jobs", json={}, **of)
        bodies.set()
        return refused, other.status_code, Counter([answer.status_code for answer in await asyncio.gather(*asked)])


def test_requests_of_one_caller_at_a_time_are_few_and_more_are_refused_before_their_body(keyed):
    sends = bearer(key(scope=Scope.TUNE))["headers"] | {"Content-Type": "application/json"}
    of = bearer(key("other", scope=Scope.TUNE))
    found = asyncio.run(answered_at_once(keyed.app, shares.AT_ONCE + 3, keyed.peer, sends, **of))
    assert found == ([429] * 3, 422, {422: shares.AT_ONCE, 429: 3})
    assert keyed.post("/v1/jobs", json={}, headers=sends).status_code == 422, "their places are free again"


@pytest.mark.parametrize(("scope", "expected"), [(Scope.TUNE, [422, 429]), (Scope.ADMIN, [422, 422])])
def test_a_long_body_of_a_key_counts_as_many_requests_before_it_is_read(keyed, monkeypatch, scope, expected):
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "20")  # ten at once
    settings.cache_clear()
    caller = Caller(new_app(), peer=keyed.peer)
    long = {"content": b'{"a": [' + b" " * 6000 + b"]}"}
    sends = bearer(key(scope=scope))["headers"] | {"Content-Type": "application/json"}
    assert [caller.post("/v1/jobs", **long, headers=sends).status_code for _ in range(2)] == expected


def test_a_token_is_looked_up_once_for_all_that_ask_with_it(monkeypatch):
    looked_up, now = [], [0.0]

    def look(token, *, is_key):
        looked_up.append(token)
        return TokenOwner(CallerOfKey("key ci", Scope.READ), None)

    monkeypatch.setattr(access, "_look_up", look)
    lock = access.AccessControl(clock=lambda: now[0])

    async def ask(count):
        await asyncio.gather(*[lock._owner({}, "token", is_key=True) for _ in range(count)])

    asyncio.run(ask(100))
    assert len(looked_up) == 1, "the first that it shows"
    now[0] += access.BELIEVED_S + 1
    asyncio.run(ask(100))
    assert len(looked_up) == 2


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
