"""/v1/projects: who may, what is answered, and keys, jobs, schedules and webhooks of a project."""

import pytest
from caller import Caller
from factories import H200, Rows
from keyed import JOB, bearer, key

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
