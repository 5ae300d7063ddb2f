"""Claims and retractions over HTTP."""

from datetime import timedelta

import pytest
from caller import Caller, new_app
from factories import CPU, SHAPE, TILED_16, Rows
from keyed import bearer, key
from sqlalchemy import select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

SOURCE = catalogue().get("gemm").source_hash("tiled")
CLAIM = {
    "kernel": "gemm",
    "shape": SHAPE,
    "device_model": CPU.slug,
    "driver": "host",
    "variant": "tiled",
    "configuration": dict(TILED_16.items),
    "source_hash": SOURCE,
    "seen": "2 components are out of bounds",
}


@pytest.fixture
def best(client) -> int:
    with transaction() as session:
        return Rows(session).best(SHAPE, model=CPU).id


def other(width: int) -> dict:
    """A claim of another problem, so that it is a new one."""
    return CLAIM | {"shape": SHAPE | {"m": width}}


def test_a_claim_changes_nothing_by_itself_and_queues_one_verification(client, best):
    made = client.post("/v1/claims", json=CLAIM)
    told = made.json()
    assert (made.status_code, made.headers["location"], told["state"]) == (202, f"/v1/claims/{told['id']}", "open")
    assert (told["variant"], told["driver"], told["found"]) == ("tiled", "host", None)
    job = client.get(f"/v1/jobs/{told['job_id']}").json()
    assert (job["verifies"], job["state"], job["budget"]["trials"]) == (True, "queued", 1)
    again = client.post("/v1/claims", json=CLAIM | {"seen": "again"})
    assert (again.status_code, again.json()) == (200, told)
    assert client.get("/v1/claims").json()["items"] == [told]
    assert client.get(f"/v1/claims/{told['id']}").json() == told
    assert client.get("/v1/results").json()["items"][0]["id"] == best
    # An ordinary job of the same problem is another job, and does not join it.
    body = {"kernel": "gemm", "shape": SHAPE, "device_model": CPU.slug, "budget": {"trials": 1}}
    assert client.post("/v1/jobs", json=body).status_code == 202


def test_a_verification_that_ends_without_an_outcome_leaves_the_claim_unverified(client, best):
    told = client.post("/v1/claims", json=CLAIM).json()
    client.post(f"/v1/jobs/{told['job_id']}/cancel")
    assert client.get(f"/v1/claims/{told['id']}").json()["state"] == "unverified"
    assert client.get("/v1/claims", params={"state": "open"}).json()["items"] == []
    assert len(client.get("/v1/claims", params={"state": "unverified"}).json()["items"]) == 1
    assert client.post("/v1/claims", json=CLAIM).json()["id"] != told["id"]  # it may be claimed anew


@pytest.mark.parametrize(
    ("changed", "status", "word"),
    [
        ({"configuration": {"TILE_WIDTH": 17}}, 422, "search space"),
        ({"configuration": {}}, 422, "TILE_WIDTH"),
        ({"variant": "nothing"}, 422, "nothing"),
        ({"device_model": "nvidia-unknown"}, 422, "device_model"),
        ({"source_hash": "0" * 64}, 409, "changed"),
        ({"seen": " "}, 422, "seen"),
        ({"shape": {"m": 1}}, 422, "shape"),
    ],
)
def test_what_was_never_served_is_no_claim(client, best, changed, status, word):
    refused = client.post("/v1/claims", json=CLAIM | changed)
    assert (refused.status_code, word in refused.text) == (status, True), refused.text
    assert client.get("/v1/claims").json()["items"] == []


def test_claims_need_the_scope_tune_and_are_capped_a_key_and_minute(client, best, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_CLAIMS_PER_MINUTE", "2")
    settings.cache_clear()
    caller = Caller(new_app())
    reader, first, second = key("reader"), key("first", scope="tune"), key("second", scope="tune")
    assert caller.post("/v1/claims", json=CLAIM, **bearer(reader)).status_code == 403
    assert caller.get("/v1/claims", **bearer(reader)).status_code == 200
    assert [caller.post("/v1/claims", json=other(m), **bearer(first)).status_code for m in (8, 16)] == [202, 202]
    refused = caller.post("/v1/claims", json=other(24), **bearer(first))
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-requests")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert caller.post("/v1/claims", json=other(8), **bearer(first)).status_code == 200  # it says nothing new
    assert caller.post("/v1/claims", json=other(24), **bearer(second)).status_code == 202
    with session_scope() as session:
        session.execute(update(models.Claim).values(created_at=models.Claim.created_at - timedelta(minutes=1)))
    assert caller.post("/v1/claims", json=other(32), **bearer(first)).status_code == 202
    with session_scope() as session:
        names = session.scalars(
            select(models.ApiKey.name).join(models.Claim, models.Claim.key_id == models.ApiKey.id)
        ).all()
    assert sorted(names) == ["first", "first", "first", "second"]
    monkeypatch.undo()
    settings.cache_clear()


REASON = {"reason": "Wrong on our matrices."}


def made() -> int:
    with transaction() as session:
        return Rows(session).best(SHAPE).id


def test_a_retracted_best_is_answered_no_more_but_stays_on_record(client):
    result_id = made()
    answered = client.post(f"/v1/results/{result_id}/retract", json=REASON)
    assert answered.status_code == 200
    told = answered.json()
    assert (told["retracted_reason"], told["retracted_by"]) == (REASON["reason"], "this machine")
    assert client.post(f"/v1/results/{result_id}/retract", json={"reason": "again"}).json() == told
    assert client.get("/v1/kernels/gemm/best", params={"shape": "m=256,n=100,k=784"}).json()["match"] == "default"
    assert client.get("/v1/results").json()["items"] == []
    assert client.get("/v1/results", params={"retracted": "true"}).json()["items"] == [told]
    with session_scope() as session:
        entry = session.scalars(select(models.AuditEntry).order_by(models.AuditEntry.id)).first()
        assert (entry.action, entry.changed) == (
            f"POST /v1/results/{result_id}/retract",
            {"best_configurations": 1},
        )


def test_what_is_no_reason_or_no_result_is_refused(client):
    result_id = made()
    for body in ({}, {"reason": ""}, {"reason": "   "}, {"reason": "x" * 1001}):
        assert client.post(f"/v1/results/{result_id}/retract", json=body).status_code == 422
    assert client.post("/v1/results/999/retract", json=REASON).status_code == 404
    assert client.get(f"/v1/results/{result_id}").json()["retracted_at"] is None
