"""Keys: what each scope may do, how they are found, rotated and revoked, and what is recorded of changes."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from caller import Caller
from factories import SHAPE, Rows
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from tilewright.service.api.middleware import access
from tilewright.service.api.middleware.access import Buckets, wanted_scope
from tilewright.service.api.refusals import TooManyRequestsError
from tilewright.service.app import create_app
from tilewright.service.operations.access import keys
from tilewright.service.operations.caller import Caller as CallerOfKey
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.requests import KeyRequest
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import Settings, settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

JOB = {"kernel": "gemm", "shape": SHAPE, "budget": {"trials": 10}}


@pytest.fixture
def keyed(client, monkeypatch) -> Iterator[Caller]:
    """An application on the same database that demands keys, asked from another machine."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    yield Caller(create_app(), peer=("192.0.2.7", 50000))
    monkeypatch.delenv("TILEWRIGHT_REQUIRE_KEYS")
    settings.cache_clear()


@pytest.fixture
def slow_rate(keyed, monkeypatch) -> None:
    """Two requests at once, four a minute, in applications that are made afterwards."""
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "4")
    settings.cache_clear()


def key(name: str = "ci", **of) -> str:
    with transaction() as session:
        return keys.create_key(session, KeyRequest(name=name, **of)).token


def bearer(token: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Authorization": f"Bearer {token}"}}


def device() -> None:
    with session_scope() as session:
        Rows(session).device()


def test_nothing_is_answered_without_a_key_but_health_and_the_way_in(keyed):
    refused = keyed.get("/v1/kernels")
    assert refused.status_code == 401
    assert refused.json()["type"] == "/problems/unknown-caller"
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert keyed.get("/health").status_code == 200
    assert keyed.get("/sign-in").status_code == 200
    assert keyed.get("/static/style.css").status_code == 200


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
    behind = Caller(create_app(), peer=keyed.peer)
    proxied = {"Host": "tiles.example", "Origin": "https://tiles.example", "X-Forwarded-For": "203.0.113.9"}
    led = behind.post("/sign-in", data={"key": key()}, headers=proxied)
    assert (led.status_code, led.headers["location"]) == (303, "/")
    assert "Secure" in led.headers["set-cookie"]
    session = led.headers["set-cookie"].split(";")[0]
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


@pytest.mark.parametrize("scope", list(Scope))
def test_a_key_may_do_what_its_scope_says(keyed, scope):
    device()
    of = bearer(key(scope=scope))
    assert keyed.get("/v1/kernels", **of).status_code == 200
    assert keyed.post("/v1/jobs", json=JOB, **of).status_code == (202 if scope is not Scope.READ else 403)
    assert keyed.get("/v1/keys", **of).status_code == (200 if scope is Scope.ADMIN else 403)


def test_a_wrong_token_is_refused_on_this_machine_too(client):
    assert client.get("/v1/kernels").status_code == 200
    assert client.get("/v1/kernels", **bearer("tw_wrong-wrong-wrong")).status_code == 401
    assert client.get("/v1/kernels", headers={"Authorization": "Basic YTpi"}).status_code == 401


def test_the_token_is_stored_nowhere_and_never_listed(keyed):
    token = key("boss", scope=Scope.ADMIN)
    listed = keyed.get("/v1/keys", **bearer(token))
    assert token not in listed.text
    assert listed.json()["items"][0]["prefix"] == token[:9]
    with session_scope() as session:
        row = session.scalars(select(models.ApiKey)).one()
    assert token not in repr(vars(row))


def test_a_rotated_key_ends_after_its_grace(keyed, monkeypatch):
    monkeypatch.setattr(access, "BELIEVED_S", 0.0)
    old = key("boss", scope=Scope.ADMIN)
    made = keyed.post("/v1/keys/boss/rotate", json={"grace_s": 60}, **bearer(old)).json()
    assert made["scope"] == "admin"
    assert keyed.get("/v1/keys", **bearer(old)).status_code == 200
    with session_scope() as session:
        session.execute(
            update(models.ApiKey)
            .where(models.ApiKey.id != made["id"])
            .values(expires_at=datetime.now(UTC) - timedelta(seconds=1))
        )
    assert keyed.get("/v1/keys", **bearer(old)).status_code == 401
    assert keyed.get("/v1/keys", **bearer(made["token"])).status_code == 200


def test_a_revoked_key_and_its_sessions_end(keyed, monkeypatch):
    monkeypatch.setattr(access, "BELIEVED_S", 0.0)
    token, admin = key("guest"), key("boss", scope=Scope.ADMIN)
    opened = keyed.post("/v1/session", json={"key": token})
    assert opened.status_code == 204
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    session_cookie = {"Cookie": cookie.split(";")[0]}
    assert keyed.get("/v1/kernels", headers=session_cookie).status_code == 200
    assert keyed.request("DELETE", "/v1/keys/guest", **bearer(admin)).status_code == 200
    assert keyed.get("/v1/kernels", headers=session_cookie).status_code == 401
    assert keyed.get("/v1/kernels", **bearer(token)).status_code == 401
    assert keyed.request("DELETE", "/v1/keys/guest", **bearer(admin)).status_code == 404


def test_a_session_ends_when_its_browser_signs_out(keyed):
    cookie = {"Cookie": keyed.post("/v1/session", json={"key": key()}).headers["set-cookie"].split(";")[0]}
    assert keyed.request("DELETE", "/v1/session", headers=cookie).status_code == 204
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(models.BrowserSession)) == 0


@pytest.mark.parametrize("cached", [False, True])
def test_a_sessions_token_is_no_key_and_a_key_no_session(keyed, cached):
    token = key()
    cookie = keyed.post("/v1/session", json={"key": token}).headers["set-cookie"].split(";")[0]
    if cached:
        assert keyed.get("/v1/kernels", headers={"Cookie": cookie}).status_code == 200
        assert keyed.get("/v1/kernels", **bearer(token)).status_code == 200
    assert keyed.get("/v1/kernels", **bearer(cookie.partition("=")[2])).status_code == 401
    assert keyed.get("/v1/kernels", headers={"Cookie": f"{access.COOKIE}={token}"}).status_code == 401


def test_one_name_is_in_force_once(client):
    assert client.post("/v1/keys", json={"name": "ci"}).status_code == 201
    assert client.post("/v1/keys", json={"name": "ci"}).status_code == 409


@pytest.mark.parametrize(
    "body", [{"name": "a b"}, {"name": ""}, {"name": "ci", "scope": "root"}, {"name": "x", "max_trials": 0}]
)
def test_a_bad_key_request_names_its_field(client, body):
    refused = client.post("/v1/keys", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"]


def test_ceilings_hold_for_budgets_and_for_open_jobs(keyed):
    device()
    of = bearer(key("small", scope=Scope.TUNE, max_trials=20, max_open_jobs=1))
    too_many = keyed.post("/v1/jobs", json=JOB | {"budget": {"trials": 21}}, **of)
    assert (too_many.status_code, too_many.json()["type"]) == (403, "/problems/over-ceiling")
    assert keyed.post("/v1/jobs", json=JOB | {"budget": {"seconds": 5}}, **of).status_code == 403
    assert keyed.post("/v1/jobs", json=JOB, **of).status_code == 202
    assert keyed.post("/v1/jobs", json=JOB, **of).status_code < 300, "an identical open job is joined"
    other = JOB | {"shape": SHAPE | {"m": 512}}
    assert keyed.post("/v1/jobs", json=other, **of).status_code == 403
    assert keyed.post("/v1/jobs", json=other, **bearer(key("large", scope=Scope.TUNE))).status_code == 202


def test_rotation_gives_no_new_ceiling_and_takes_no_job_away(keyed):
    device()
    old = key("small", scope=Scope.TUNE, max_trials=20, max_open_jobs=1)
    made = keyed.post("/v1/jobs", json=JOB, **bearer(old)).json()
    with transaction() as session:
        new = bearer(keys.rotate_key(session, "small", grace_s=60).token)
    other = JOB | {"shape": SHAPE | {"m": 512}}
    assert keyed.post("/v1/jobs", json=other, **new).json()["type"] == "/problems/over-ceiling"
    assert keyed.post(f"/v1/jobs/{made['id']}/cancel", **new).json()["state"] == "cancelled"
    assert keyed.post("/v1/jobs", json=other, **new).status_code == 202


def test_a_job_is_cancelled_by_who_asked_for_it_and_by_admins(keyed):
    device()
    mine, other, admin = (bearer(key(n, scope=s)) for n, s in [("a", "tune"), ("b", "tune"), ("c", "admin")])
    job_id = keyed.post("/v1/jobs", json=JOB, **mine).json()["id"]
    refused = keyed.post(f"/v1/jobs/{job_id}/cancel", **other)
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/forbidden")
    assert "the key 'a'" in refused.json()["detail"]
    assert keyed.get(f"/v1/jobs/{job_id}", **other).json()["state"] == "queued"
    assert keyed.post(f"/v1/jobs/{job_id}/cancel", **admin).status_code == 200
    nobodys = keyed.post("/v1/jobs", json=JOB, **mine).json()["id"]
    with session_scope() as session:
        session.execute(update(models.TuningJob).values(key_id=None))  # as of a time without keys
    assert keyed.post(f"/v1/jobs/{nobodys}/cancel", **other).status_code == 200


def test_a_schedule_and_its_jobs_are_changed_by_who_made_it_and_by_admins(keyed):
    device()
    mine, other, admin = (bearer(key(n, scope=s)) for n, s in [("a", "tune"), ("b", "tune"), ("c", "admin")])
    body = {"name": "nightly", "cron": "0 0 2 * * *", "problems": [{"kernel": "gemm", "shape": SHAPE}]}
    body |= {"budget": {"trials": 10}}
    path = f"/v1/schedules/{keyed.post('/v1/schedules', json=body, **mine).json()['id']}"
    changes = [("PUT", path, {"json": body}), *(("POST", f"{path}/{what}", {}) for what in ("pause", "resume", "run"))]
    for method, address, sent in [*changes, ("DELETE", path, {})]:
        headers = {"headers": other["headers"]}
        assert keyed.request(method, address, **sent, **headers).json()["type"] == "/problems/forbidden", address
    (job,) = keyed.post(f"{path}/run", **mine).json()["items"]
    assert keyed.post(f"/v1/jobs/{job['id']}/cancel", **other).status_code == 403
    assert keyed.post(f"/v1/jobs/{job['id']}/cancel", **mine).status_code == 200
    for method, address, sent in changes:
        assert keyed.request(method, address, **sent, **admin).is_success, address
    assert keyed.request("DELETE", path, **mine).status_code == 204


def test_idempotency_keys_are_the_callers_own(keyed):
    device()
    first, second = (bearer(key(name, scope=Scope.TUNE)) for name in ("a", "b"))

    def ask(of, trials):
        headers = of["headers"] | {"Idempotency-Key": "nightly"}
        return keyed.post("/v1/jobs", json=JOB | {"budget": {"trials": trials}}, headers=headers)

    mine, others = ask(first, 10), ask(second, 11)
    assert (mine.status_code, others.status_code) == (202, 202)
    assert mine.json()["id"] != others.json()["id"]
    assert (ask(first, 10).json()["id"], ask(first, 11).status_code) == (mine.json()["id"], 409)


def test_a_change_is_recorded_with_its_author_and_a_refused_one_is_not(keyed):
    device()
    tuner, admin = key("tuner", scope=Scope.TUNE), key("boss", scope=Scope.ADMIN)
    made = keyed.post("/v1/jobs", json=JOB, **bearer(tuner))
    keyed.post("/v1/jobs", json=JOB | {"kernel": "nothing"}, **bearer(tuner))
    entries = keyed.get("/v1/audit", **bearer(admin)).json()["items"]
    assert [(e["actor"], e["action"]) for e in entries] == [("key tuner", "POST /v1/jobs")]
    assert entries[0]["request_id"] == made.headers["x-request-id"]
    assert entries[0]["changed"]["tuning_jobs"] >= 1
    assert tuner not in str(entries)


@pytest.mark.usefixtures("slow_rate")
def test_too_many_requests_wait_as_long_as_they_are_told(keyed):
    hurried = Caller(create_app(), peer=keyed.peer)
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
    hurried = Caller(create_app(), peer=keyed.peer)
    body = {"json": {}} if method == "POST" else {}
    assert [hurried.request(method, path, **body).status_code for _ in answers] == answers
    assert hurried.get("/v1/kernels", **bearer(key())).status_code == 200, "a key has a rate of its own"


@pytest.mark.usefixtures("slow_rate")
def test_a_long_body_of_one_without_a_key_counts_as_many_requests(keyed, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_OPEN_READS", "true")
    monkeypatch.setenv("TILEWRIGHT_REQUESTS_PER_MINUTE", "20")  # ten at once
    settings.cache_clear()
    reader = Caller(create_app(), peer=keyed.peer)
    long = {"content": b'{"shapes": [' + b" " * 6000 + b"]}", "headers": {"Content-Type": "application/json"}}
    answers = [reader.post("/v1/kernels/gemm/best:batch", **long).status_code for _ in range(2)]
    assert answers == [422, 429], "five and one, and of the four that are left one"
    large = {**long, "content": b" " * ((1 << 16) + 1)}
    assert Caller(create_app(), peer=keyed.peer).post("/v1/kernels/gemm/best:batch", **large).status_code == 413
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
            *[lock._owner(f"{n}", "here", is_key=True) for n in range(count)], return_exceptions=True
        )
        return [type(error) for error in seen]

    asyncio.run(flood(access.WRONG_PER_MINUTE))
    most.clear()
    assert set(asyncio.run(flood(40))) == {TooManyRequestsError}
    assert (max(most), len(most)) == (access.GUESSES_AT_ONCE, 40)


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
        asyncio.run(lock._owner("token", "here", is_key=True))
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
        asyncio.run(lock._owner("token", "here", is_key=True))
    assert len(looked_up) == lookups


def test_signing_out_without_a_session_has_nobody_looked_up_again(keyed, monkeypatch):
    of = bearer(key())
    assert keyed.get("/v1/kernels", **of).status_code == 200
    keyed.request("DELETE", "/v1/session", headers={"Cookie": f"{access.COOKIE}=tw_nobody"})
    monkeypatch.setattr(access, "_look_up", None)
    assert keyed.get("/v1/kernels", **of).status_code == 200


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
    path=st.sampled_from(
        ["/v1/keys", "/v1/keys/ci/rotate", "/v1/audit", "/v1/jobs", "/v1/kernels/gemm/best:batch", "/"]
    ),
)
def test_only_an_admin_touches_keys_and_only_safe_methods_are_reads(method, path):
    wanted = wanted_scope(method, path)
    if path.startswith(("/v1/keys", "/v1/audit")):
        assert wanted is Scope.ADMIN
    elif wanted is Scope.READ:
        assert method in {"GET", "HEAD"} or path.endswith(":batch")


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


@pytest.mark.parametrize(("scope", "counted"), [("read", 1), ("tune", 3)])
def test_a_read_key_weighs_once_a_minute_in_the_demand_for_a_problem(keyed, scope, counted):
    device()
    token = key(scope=scope)
    for _ in range(3):
        assert keyed.get("/v1/kernels/gemm/best?shape=m=256,n=100,k=784", **bearer(token)).status_code == 200
    keyed.app.state.demand.flush()
    (row,) = keyed.get("/v1/demand", **bearer(token)).json()["items"]
    assert row["count"] == counted
