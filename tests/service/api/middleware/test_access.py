"""Keys: what each scope may do, how they are found, rotated and revoked, and what is recorded of changes."""

from datetime import UTC, datetime, timedelta

import pytest
from caller import JOB, bearer, device, key
from factories import SHAPE
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from tilewright.service.api.middleware import access
from tilewright.service.api.middleware.access import wanted_scope
from tilewright.service.operations.access import keys, sessions
from tilewright.service.operations.caller import Scope
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.session import session_scope


def test_nothing_is_answered_without_a_key_but_health_and_the_way_in(keyed):
    refused = keyed.get("/v1/kernels")
    assert refused.status_code == 401
    assert refused.json()["type"] == "/problems/unknown-caller"
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert keyed.get("/health").status_code == 200
    assert keyed.get("/sign-in").status_code == 200
    assert keyed.get("/static/style.css").status_code == 200


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


@pytest.mark.parametrize("cached", [False, True])
def test_a_sessions_token_is_no_key_and_a_key_no_session(keyed, cached):
    token = key()
    cookie = keyed.post("/v1/session", json={"key": token}).headers["set-cookie"].split(";")[0]
    if cached:
        assert keyed.get("/v1/kernels", headers={"Cookie": cookie}).status_code == 200
        assert keyed.get("/v1/kernels", **bearer(token)).status_code == 200
    assert keyed.get("/v1/kernels", **bearer(cookie.partition("=")[2])).status_code == 401
    assert keyed.get("/v1/kernels", headers={"Cookie": f"{sessions.COOKIE}={token}"}).status_code == 401


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


@pytest.mark.parametrize(("scope", "counted"), [("read", 1), ("tune", 3)])
def test_a_read_key_weighs_once_a_minute_in_the_demand_for_a_problem(keyed, scope, counted):
    device()
    token = key(scope=scope)
    for _ in range(3):
        assert keyed.get("/v1/kernels/gemm/best?shape=m=256,n=100,k=784", **bearer(token)).status_code == 200
    keyed.app.state.demand.flush()
    (row,) = keyed.get("/v1/demand", **bearer(token)).json()["items"]
    assert row["count"] == counted


@pytest.mark.parametrize(
    ("days", "grace_s", "left_s"), [(1, 60.0, 60.0), (1, 10 * 86400.0, 86400.0), (None, 60.0, 60.0)]
)
def test_a_rotated_key_ends_at_its_grace_or_at_its_own_end_whichever_comes_first(client, days, grace_s, left_s):
    key("ci", expires_days=days)
    with transaction() as session:
        [before] = keys.keys(session)
        keys.rotate_key(session, "ci", grace_s=grace_s)
    with transaction() as session:
        old, new = keys.keys(session)
    assert (old.expires_at - datetime.now(UTC)).total_seconds() == pytest.approx(left_s, abs=30)
    assert new.expires_at == before.expires_at


@pytest.mark.parametrize("key_hours", [1, 400])
def test_a_session_ends_with_its_key_or_after_its_time_whichever_comes_first(client, key_hours):
    token, now = key("guest"), datetime.now(UTC)
    with transaction() as session:
        session.execute(update(models.ApiKey).values(expires_at=now + timedelta(hours=key_hours)))
    with transaction() as session:
        sessions.open_session(session, token)
    with transaction() as session:
        ends = session.scalars(select(models.BrowserSession.expires_at)).one()
    assert ends - now == pytest.approx(min(timedelta(hours=key_hours), sessions.LASTS), abs=timedelta(seconds=30))


@pytest.mark.parametrize("of", ["session", "key"])
def test_a_session_that_has_expired_or_whose_key_has_is_nobodys(client, of):
    token, table = key("guest"), models.BrowserSession if of == "session" else models.ApiKey
    with transaction() as session:
        opened = sessions.open_session(session, token)
        session.flush()
        assert sessions.find_session(session, opened).caller.key_name == "guest"
        session.execute(update(table).values(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
        assert sessions.find_session(session, opened) is None
        session.execute(update(table).values(expires_at=datetime.now(UTC) + timedelta(seconds=60)))
        assert sessions.find_session(session, opened) is not None
