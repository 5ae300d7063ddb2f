"""POST /v1/results/{id}/retract: who may, what it answers, what `best` says then."""

from factories import SHAPE, Rows
from sqlalchemy import select

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

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
