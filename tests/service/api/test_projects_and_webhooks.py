"""Projects, webhooks and draining over HTTP: who may, what is answered, what is refused."""

from __future__ import annotations

import uuid

import pytest
from caller import JOB, Caller, bearer, key
from factories import H200, Rows

from tilewright.service.api.middleware.access import wanted_scope
from tilewright.service.app import create_app
from tilewright.service.operations.caller import Scope
from tilewright.service.settings import settings
from tilewright.service.store.session import session_scope


@pytest.fixture
def keyed(client, monkeypatch):
    """A service with a device that demands keys."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    settings.cache_clear()
    with session_scope() as session:
        Rows(session).device()
    yield Caller(create_app())
    monkeypatch.undo()
    settings.cache_clear()


def test_a_project_is_made_listed_and_changed_by_an_admin_alone(keyed):
    admin, tuner = bearer(key("boss", scope=Scope.ADMIN)), bearer(key("ci", scope=Scope.TUNE))
    body = {"name": "vision", "max_open_jobs": 1}
    for ask in (
        lambda of: keyed.post("/v1/projects", json=body, **of),
        lambda of: keyed.request("PATCH", "/v1/projects/default", json={}, **of),
        lambda of: keyed.get("/v1/projects", **of),
    ):
        assert ask(tuner).status_code == 403
    made = keyed.post("/v1/projects", json=body, **admin)
    assert (made.status_code, made.json()["max_open_jobs"], made.json()["keys"]) == (201, 1, 0)
    assert keyed.post("/v1/projects", json=body, **admin).status_code == 409
    assert keyed.post("/v1/projects", json={"name": "a/b"}, **admin).status_code == 422
    changed = keyed.request(
        "PATCH", "/v1/projects/vision", json={"max_open_jobs": None, "max_schedules": 2}, **admin
    ).json()
    assert (changed["max_open_jobs"], changed["max_schedules"]) == (None, 2)
    assert keyed.request("PATCH", "/v1/projects/nobody", json={}, **admin).status_code == 404
    assert [one["name"] for one in keyed.get("/v1/projects", **admin).json()["items"]] == ["default", "vision"]


def test_a_key_of_a_project_makes_jobs_of_it_within_its_quota(keyed):
    admin = bearer(key("boss", scope=Scope.ADMIN))
    keyed.post("/v1/projects", json={"name": "vision", "max_open_jobs": 1}, **admin)
    made = keyed.post("/v1/keys", json={"name": "v", "scope": "tune", "project": "vision"}, **admin).json()
    assert made["project"] == "vision"
    of, other = bearer(made["token"]), bearer(key("other", scope=Scope.TUNE))
    job = JOB | {"device_model": H200.slug}
    first = keyed.post("/v1/jobs", json=job, **of).json()
    for m in (8, 16):
        more = job | {"shape": job["shape"] | {"m": m}}
        refused = keyed.post("/v1/jobs", json=more, **of)
        assert (refused.status_code, "'vision'" in refused.json()["detail"]) == (403, True)
        assert keyed.post("/v1/jobs", json=more, **other).status_code == 202
    listed = keyed.get("/v1/jobs", params={"project": "vision"}, **of).json()["items"]
    assert [one["id"] for one in listed] == [first["id"]]
    assert keyed.get("/v1/schedules", params={"project": "vision"}, **of).json()["items"] == []
    unknown = keyed.get("/v1/jobs", params={"project": "nobody"}, **of)
    assert (unknown.status_code, "known: default, vision" in unknown.text) == (422, True)


def test_a_key_or_a_webhook_of_an_unknown_project_is_refused_and_says_which_there_are(keyed):
    admin = bearer(key("boss", scope=Scope.ADMIN))
    for path, body in (("/v1/keys", {}), ("/v1/webhooks", {"url": "https://ci.example/hook"})):
        refused = keyed.post(path, json={"name": "x", "project": "nobody"} | body, **admin)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["pointer"] == "#/project"
        assert "known: default." in refused.text


URL = "https://ci.example/hook"


@pytest.fixture
def device() -> str:
    """The UUID of a registered device."""
    with session_scope() as session:
        return Rows(session).device().uuid


def make(client, **of):
    return client.post("/v1/webhooks", json={"name": "ci", "url": URL} | of)


def test_a_secret_is_shown_once(client):
    made = make(client, states=["done"])
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    assert made.json()["secret"].startswith("whsec_")
    (listed,) = client.get("/v1/webhooks").json()["items"]
    assert (listed["name"], listed["url"], listed["states"], listed["waiting"]) == ("ci", URL, ["done"], 0)
    assert made.json()["secret"] not in client.get("/v1/webhooks").text
    assert make(client).status_code == 409
    deleted = client.request("DELETE", "/v1/webhooks/ci")
    assert (deleted.status_code, client.get("/v1/webhooks").json()["items"]) == (204, [])


@pytest.mark.parametrize(
    ("of", "pointer"),
    [
        ({"url": "https://169.254.169.254/latest/meta-data"}, "#/url"),
        ({"url": "http://ci.example/"}, "#/url"),
        ({"url": "https://[::1]/"}, "#/url"),
        ({"states": []}, "#/states"),
        ({"states": ["running"]}, "#/states/0"),
        ({"name": "../x"}, "#/name"),
        ({"secret": "mine"}, "#/secret"),
    ],
)
def test_what_may_not_be_asked_for_is_refused_by_its_field(client, of, pointer):
    refused = make(client, **of)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert client.get("/v1/webhooks").json()["items"] == []


def test_messages_are_listed_and_sent_again(client, device):
    make(client)
    job = client.post("/v1/jobs", json=JOB).json()
    client.post(f"/v1/jobs/{job['id']}/cancel", headers={"Content-Type": "application/json"})
    page = client.get("/v1/webhooks/ci/deliveries", params={"limit": 1}).json()
    (message,) = page["items"]
    assert (message["job_id"], message["state"], message["attempts"]) == (job["id"], "waiting", 0)
    again = client.post(f"/v1/webhooks/ci/deliveries/{message['id']}/retry")
    assert (again.status_code, again.json()["id"]) == (200, message["id"])
    assert client.post(f"/v1/webhooks/ci/deliveries/{uuid.uuid4()}/retry").status_code == 404
    assert client.get("/v1/webhooks/other/deliveries").status_code == 404
    assert client.get("/v1/webhooks/ci/deliveries", params={"cursor": "NDI"}).status_code == 422


def test_a_device_is_drained_and_resumed_as_often_as_asked(client, device):
    for _ in range(2):
        drained = client.post(f"/v1/devices/{device}/drain")
        assert (drained.status_code, drained.json()["draining"], drained.json()["job"]) == (200, True, None)
    assert client.get("/v1/devices").json()["items"][0]["draining"]
    for _ in range(2):
        assert not client.post(f"/v1/devices/{device}/resume").json()["draining"]
    unknown = client.post("/v1/devices/GPU-none/drain")
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/not-found")


def test_webhooks_and_draining_are_for_admins():
    assert wanted_scope("GET", "/v1/webhooks") is Scope.ADMIN
    assert wanted_scope("POST", "/v1/devices/GPU-1/drain") is Scope.ADMIN
    assert wanted_scope("GET", "/v1/devices") is Scope.READ


def test_priorities_go_from_zero_to_nine(client, device):
    assert client.post("/v1/jobs", json=JOB).json()["priority"] == 5
    for priority in (-1, 10):
        refused = client.post("/v1/jobs", json=JOB | {"priority": priority})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/priority")
