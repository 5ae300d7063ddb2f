"""Webhooks and draining through HTTP: secrets shown once, who may, and what is refused."""

import uuid

import pytest
from factories import SHAPE, Rows

from tilewright.service.api.middleware.access import wanted_scope
from tilewright.service.operations.caller import Scope
from tilewright.service.store.session import session_scope

URL = "https://ci.example/hook"
JOB = {"kernel": "gemm", "shape": SHAPE, "budget": {"trials": 10}}


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
