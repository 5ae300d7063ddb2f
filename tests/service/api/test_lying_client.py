"""A key of scope `tune` that lies: it can report claims alone, and no claim withdraws a best or enters predictions."""

import pytest
from caller import Caller
from factories import H200, SHAPE, TILED_16, Rows
from keyed import bearer, key
from sqlalchemy import func, select, update
from tuned_shapes import tune_four

from tilewright.kernels.catalogue import catalogue
from tilewright.service.app import create_app
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.best.records import records_of
from tilewright.service.operations.claims.claims import settle_claims
from tilewright.service.operations.transaction import transaction
from tilewright.service.settings import settings
from tilewright.service.store import models
from tilewright.service.store.session import session_scope

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
