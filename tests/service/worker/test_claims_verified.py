"""Claims end to end: a client's claim, a worker's verification on the CPU device, and what the API answers then."""

from pathlib import Path

import pytest
from fleet import free_port
from sqlalchemy import func, select, update

from tilewright.kernels.catalogue import Catalogue
from tilewright.kernels.space import Configuration
from tilewright.service.client import ApiUnreachableError, Client
from tilewright.service.operations.jobs.record_trial import configuration_hash
from tilewright.service.operations.registry import kernel_variant_ids
from tilewright.service.operations.requests import BudgetRequest, ClaimRequest, JobRequest
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome
from tilewright.tuner.runtime.known.service import ApiCalls, SeenTimes

ROW_SUM = Path(__file__).parents[2] / "faults" / "row_sum"
SHAPE, NEAR = {"m": 37, "n": 300}, {"m": 40, "n": 320}
WRONG = Configuration.of("wrong", {"THREADS": 128})


@pytest.fixture
def client(fleet):
    """A client of an API with a worker, which both know a kernel with a wrong variant."""
    fleet.start_worker(TILEWRIGHT_KERNEL_FOLDERS=str(ROW_SUM))
    fleet.wait_for_device()
    port = free_port()
    fleet.start_api(port, TILEWRIGHT_KERNEL_FOLDERS=str(ROW_SUM))
    with Client(f"http://127.0.0.1:{port}") as client:
        fleet.until(lambda: _models(client))
        yield client


def _models(client):
    try:
        return client.device_models()
    except ApiUnreachableError:
        return None


def tuned(fleet, client, shape):
    asked = {"kernel": "row_sum", "shape": shape, "variants": ["good"], "sampler": "random"}
    job, _ = client.request_job(JobRequest(**asked, budget=BudgetRequest(trials=2)))
    done = fleet.wait_for_state(job.id, "done", "failed")
    assert (done.state, done.error) == ("done", None)
    return done


def plant(fleet, kernel, job):
    """The best of the job's study is now the wrong variant, as if verification had not seen its fault."""
    with fleet.session() as session:
        best = session.scalars(select(models.BestConfiguration).where(models.BestConfiguration.job_id == job.id)).one()
        study = session.get_one(models.Study, job.study_id)
        trial = models.Trial(
            study_id=study.id,
            number=study.next_number,
            job_id=job.id,
            job_revision=99,
            epoch=1,
            kernel_variant_id=kernel_variant_ids(session, kernel)["wrong"],
            configuration=WRONG.as_json(),
            configuration_hash=configuration_hash(kernel, WRONG),
            outcome=Outcome.MEASURED,
            time_ms=1e-4,
            warm_ms=1e-4,
            ranking_l2="warm",
        )
        study.next_number += 1
        session.add(trial)
        session.flush()
        new_id = session.scalar(select(func.nextval("best_configurations_id_seq")))
        session.execute(update(type(best)).where(type(best).id == best.id).values(superseded_by_id=new_id))
        same = ("problem_id", "device_model_id", "environment_id", "job_id", "l2")
        session.add(
            models.BestConfiguration(
                id=new_id,
                trial_id=trial.id,
                time_ms=1e-4,
                ci_low_ms=1e-4,
                ci_high_ms=1e-4,
                **{name: getattr(best, name) for name in same},
            )
        )


@pytest.mark.in_turn(2)  # 19 s of CPU time; test_claims_endpoints.py tries the parts
def test_what_a_worker_confirms_is_served_no_more_and_what_it_refutes_stays(fleet, client):
    kernel = Catalogue.load([ROW_SUM]).get("row_sum")
    model = client.device_models()[0].slug

    def best(shape):
        return client.best("row_sum", model, shape, "float32", {})

    def settled(claim_id):
        return fleet.until(lambda: (seen := client.claim(claim_id)).state != "open" and seen)

    plant(fleet, kernel, tuned(fleet, client, SHAPE))
    served = fleet.until(lambda: (now := best(SHAPE)).variant == "wrong" and now)
    assert (served.match, best(NEAR).match, best(NEAR).variant) == ("exact", "nearest", "wrong")

    # As the launcher does it: a claim by itself changes nothing, and the same one is not verified twice.
    api, problem = ApiCalls(client.url, None, 30.0), kernel.problem(NEAR)
    first = api.claim(kernel, problem, model, "host", WRONG, "rows are wrong")
    again = api.claim(kernel, problem, model, "host", WRONG, "rows are wrong, again")
    assert (first["id"], first["state"]) == (again["id"], "open")
    near = settled(first["id"])
    assert (near.state, near.job_id == client.job(near.job_id).id) == ("confirmed", True)
    assert "out of bounds" in near.found
    assert client.job(near.job_id).verifies
    assert [trial.outcome for trial in client.trials(near.job_id).items] == ["wrong_result"]
    # It was wrong for that problem, so that the neighbour's best serves it no more; the neighbour has it still.
    fleet.until(lambda: best(NEAR).variant == "good")
    assert best(SHAPE).variant == "wrong"

    request = ClaimRequest(
        kernel="row_sum",
        shape=SHAPE,
        device_model=model,
        driver="host",
        variant=served.variant,
        configuration=served.configuration,
        source_hash=served.source_hash,
        seen="the sums are wrong",
    )
    exact = settled(client.report_claim(request).id)
    assert exact.state == "confirmed"
    after = fleet.until(lambda: (now := best(SHAPE)).variant == "good" and now)
    assert after.match == "exact"
    (withdrawn,) = client.results(kernel="row_sum", retracted=True).items
    assert withdrawn.retracted_reason.startswith(f"Claim {exact.id} was confirmed: ")
    with fleet.session() as session:
        assert len(session.scalars(select(models.BestConfiguration)).all()) == 3  # tuned, planted, in its place

    right = {"variant": after.variant, "configuration": after.configuration, "source_hash": after.source_hash}
    honest = request.model_copy(update=right)
    refuted = settled(client.report_claim(honest).id)
    assert (refuted.state, refuted.found.startswith("It is right")) == ("refuted", True)
    assert best(SHAPE).variant == "good"
    assert client.report_claim(honest).id == refuted.id  # a repetition occupies no device
    assert [one.state for one in client.claims(state="confirmed").items] == ["confirmed"] * 2

    # What first calls took, as the launcher tells it: the problem is measured, and nothing withdrawn.
    other = kernel.problem({"m": 50, "n": 310})
    good = Configuration.of(after.variant, after.configuration)
    told = api.claim(kernel, other, model, "host", good, "in words", times=SeenTimes(1.0, 0.5, 10))
    measured = settled(told["id"])
    assert (measured.state, measured.found, measured.times.library_ms) == ("measured", None, 0.5)
    assert not client.job(measured.job_id).verifies
    assert fleet.until(lambda: (now := best({"m": 50, "n": 310})).match == "exact" and now)
