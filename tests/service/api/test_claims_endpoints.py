"""Claims and retractions over HTTP, and a key of scope `tune` that lies."""

from __future__ import annotations

from datetime import timedelta

import pytest
from caller import Caller, bearer, key, new_app
from factories import CPU, H200, SHAPE, TILED_16, Rows, tune_four
from sqlalchemy import func, select, update

from tilewright.kernels.catalogue import catalogue
from tilewright.service.app import create_app
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best.records import records_of
from tilewright.service.operations.claims.claims import settle_claims
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


TIMES = {"ours_ms": 1.88, "library_ms": 1.21, "calls": 10}


def test_a_claim_of_times_queues_one_search_behind_all_others_and_withdraws_nothing(client, best):
    body = CLAIM | {"seen": "the library is faster", "times": TIMES}
    told = client.post("/v1/claims", json=body).json()
    assert (told["state"], told["times"]) == ("open", TIMES)
    job = client.get(f"/v1/jobs/{told['job_id']}").json()
    assert (job["verifies"], job["priority"], job["budget"]["trials"]) == (False, 1, None)
    assert job["budget"]["seconds"] == 30
    again = client.post("/v1/claims", json=body | {"times": TIMES | {"ours_ms": 9.0}})
    assert (again.status_code, again.json()["id"]) == (200, told["id"])
    wrong = client.post("/v1/claims", json=CLAIM)  # says something else
    assert (wrong.status_code, wrong.json()["times"]) == (202, None)
    assert wrong.json()["job_id"] != told["job_id"]
    assert client.post("/v1/claims", json=body | {"driver": "other"}).json()["job_id"] == told["job_id"]
    with session_scope() as session:
        job_row = models.TuningJob.id == told["job_id"]
        session.execute(update(models.TuningJob).where(job_row).values(state="done"))
    assert client.get(f"/v1/claims/{told['id']}").json()["state"] == "measured"
    of_state = {state: client.get("/v1/claims", params={"state": state}).json()["items"] for state in STATES}
    assert [len(of_state[state]) for state in STATES] == [1, 2, 0, 0]
    assert client.post("/v1/claims", json=body).status_code == 200  # for a day
    assert client.get("/v1/results").json()["items"][0]["id"] == best


STATES = ("open", "measured", "unverified", "confirmed")


@pytest.mark.parametrize(
    ("changed", "status", "word"),
    [
        ({"times": TIMES | {"ours_ms": 0}}, 422, "ours_ms"),
        ({"times": TIMES | {"calls": 0}}, 422, "calls"),
        ({"times": {"ours_ms": 1}}, 422, "times"),
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


MODEL = H200.slug
LIE = {
    "kernel": "gemm",
    "shape": SHAPE,
    "device_model": MODEL,
    "driver": "580.0",
    "variant": "tiled",
    "configuration": dict(TILED_16.items),
    "source_hash": catalogue().get("gemm").source_hash("tiled"),
    "seen": "everything is wrong",
}
UNTUNED = {"m": 700, "n": 100, "k": 784}
CLAIMS = 6


@pytest.fixture
def bests(client, monkeypatch) -> list[int]:
    """Ids of the bests of four shapes, in a service that demands keys and takes a few claims a minute."""
    monkeypatch.setenv("TILEWRIGHT_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TILEWRIGHT_CLAIMS_PER_MINUTE", str(CLAIMS))
    settings.cache_clear()
    with session_scope() as session:
        made = [best.id for best in tune_four(Rows(session))]
    yield made
    monkeypatch.undo()
    settings.cache_clear()


def served(bests):
    """All that an application may be answered, and all that predictions are made from."""
    with session_scope() as session:
        current = session.scalars(
            select(models.BestConfiguration.id)
            .where(models.BestConfiguration.superseded_by_id.is_(None), models.BestConfiguration.retracted_at.is_(None))
            .order_by(models.BestConfiguration.id)
        ).all()
        records = records_of(session, catalogue().get("gemm"), bests)
    return current, records, [find_best("gemm", MODEL, shape) for shape in (SHAPE, UNTUNED)]


def jobs_of_claims(session):
    return session.scalars(select(models.Claim.job_id).distinct()).all()


def test_no_claim_withdraws_a_best_or_enters_predictions_before_a_worker_says_so(bests):
    caller, liar = Caller(create_app()), bearer(key("liar", scope="tune"))
    before = served(bests)
    assert [answer.match for answer in before[2]] == ["exact", "predicted"]
    shapes = [SHAPE | {"m": m} for m in (256, 512, 1024, 2048)] + [UNTUNED, *({"m": m, "n": 8, "k": 8} for m in (8, 9))]
    found = [caller.post("/v1/claims", json=LIE | {"shape": shape}, **liar).status_code for shape in shapes]
    assert found == [202] * CLAIMS + [429] * (len(shapes) - CLAIMS)
    assert served(bests) == before
    with session_scope() as session:
        jobs = session.scalars(select(models.TuningJob).where(models.TuningJob.verifies)).all()
        assert [(job.state, job.budget_trials) for job in jobs] == [("queued", 1)] * CLAIMS
    # The worker finds each right: what it measured meanwhile makes no best, and the claims are closed.
    with session_scope() as session:
        for job_id in jobs_of_claims(session):
            settle_claims(session, job_id, is_wrong=False, found="It is right with every kind of inputs.")
    assert served(bests) == before
    assert {one["state"] for one in caller.get("/v1/claims", **liar).json()["items"]} == {"refuted"}


def test_only_what_a_worker_finds_withdraws_a_best(bests):
    caller, honest = Caller(create_app()), bearer(key("honest", scope="tune"))
    claim = caller.post("/v1/claims", json=LIE, **honest).json()
    with session_scope() as session:
        (job_id,) = jobs_of_claims(session)
        settle_claims(session, job_id, is_wrong=True, found="2 components are out of bounds")
    current, records, answers = served(bests)
    assert bests[0] not in current
    assert answers[0].configuration != claim["configuration"]
    (of_it,) = (record for record in records if dict(record.problem.axes) == SHAPE)
    assert TILED_16 in of_it.failed
    assert all(TILED_16 in record.times_ms for record in records if record is not of_it)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/claims", LIE | {"state": "confirmed"}, 422),
        ("/v1/claims", LIE | {"found": "wrong", "outcome": "wrong_result"}, 422),
        ("/v1/claims", LIE | {"time_ms": 1e-6}, 422),
        ("/v1/jobs", {"kernel": "gemm", "shape": SHAPE, "device_model": MODEL, "best_ms": 1e-6}, 422),
        ("/v1/jobs", {"kernel": "gemm", "shape": SHAPE, "device_model": MODEL, "verifies": True}, 422),
        ("/v1/import", {"format": "tilewright"}, 403),
    ],
)
def test_a_client_has_no_field_for_a_result(bests, path, body, status):
    liar = bearer(key("liar", scope="tune"))
    assert Caller(create_app()).post(path, json=body, **liar).status_code == status


def test_a_result_is_retracted_by_who_found_it_or_an_admin(bests):
    caller, reason = Caller(create_app()), {"reason": "I say so."}
    liar, owner, admin = (
        bearer(key(name, scope=scope)) for name, scope in (("liar", "tune"), ("ci", "tune"), ("boss", "admin"))
    )

    def status(result, of):
        return caller.post(f"/v1/results/{result}/retract", json=reason, **of).status_code

    assert [status(best, liar) for best in bests] == [403] * 4, "of the command line"
    with transaction() as session:
        job = select(models.BestConfiguration.job_id).where(models.BestConfiguration.id == bests[1])
        owned = update(models.TuningJob).where(models.TuningJob.id == job.scalar_subquery())
        ci = select(models.ApiKey.id).where(models.ApiKey.name == "ci")
        session.execute(owned.values(key_id=ci.scalar_subquery()))
    assert [status(bests[1], of) for of in (liar, owner)] == [403, 200]
    assert status(bests[2], admin) == 200
    with session_scope() as session:
        count = select(func.count()).where(models.BestConfiguration.retracted_at.is_not(None))
        assert session.scalar(count) == 2
