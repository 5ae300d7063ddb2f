"""Every endpoint: what it answers, and one refusal per rule, as problem documents that name the field."""

import json
import uuid

import pytest
from factories import CPU, H100, H200, SHAPE, TILED_16, TILED_32, Rows

from tilewright.service.api.problem_types import all_types
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

JOB = {"kernel": "gemm", "shape": SHAPE, "budget": {"trials": 5}}
BEST = "/v1/kernels/gemm/best?device_model=nvidia-h200&shape=m=256,n=100,k=784"


def commit(make):
    """What `make` makes, committed."""
    with transaction() as session:
        return make(Rows(session))


def refused(response, status, name):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert (document["type"], document["status"]) == (f"/problems/{name}", status)
    return document


def the_field(response):
    """The only refused field, which says what is wrong and shows what would do."""
    (field,) = refused(response, 422, "invalid-request")["errors"]
    assert field["detail"]
    assert field["example"]
    return field["location"], field["pointer"]


def test_best_answers_and_is_not_sent_again_unchanged(client):
    commit(lambda rows: rows.best(time_ms=0.5))
    first = client.get(BEST)
    assert (first.status_code, first.json()["match"], first.json()["time_ms"]) == (200, "exact", 0.5)
    assert "max-age" in first.headers["cache-control"]
    for tag in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = client.get(BEST, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert client.get(BEST, headers={"If-None-Match": '"other"'}).status_code == 200


def test_best_takes_options_and_the_only_device_model(client):
    commit(lambda rows: rows.best(options={"trans_b": True}))
    found = client.get("/v1/kernels/gemm/best?shape=m=256,n=100,k=784&options=trans_b=true,beta_zero=true").json()
    assert (found["match"], found["device_model"]) == ("exact", "nvidia-h200")


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("", "#/shape"),
        ("shape=", "#/shape"),
        ("shape=256x100", "#/shape"),
        ("shape=m=256,n=100", "#/shape/k"),
        ("shape=m=0,n=1,k=1", "#/shape/m"),
        ("shape=m=-1,n=1,k=1", "#/shape/m"),
        ("shape=m=99999999999999,n=1,k=1", "#/shape/m"),
        ("shape=m=1,n=1,k=1,q=1", "#/shape/q"),
        ("shape=m=4,n=4,k=4,lda=3", "#/shape/lda"),
        ("shape=m=4,n=4,k=4,batch=2,stride_c=0", "#/shape/stride_c"),
        ("shape=m=1,n=1,k=1&dtype=float8", "#/dtype"),
        ("shape=m=1,n=1,k=1&options=trans_q=true", "#/options/trans_q"),
        ("shape=m=1,n=1,k=1&options=trans_b=7", "#/options/trans_b"),
        ("shape=m=1,n=1,k=1&shap=2", "#/shap"),
    ],
)
def test_best_names_the_field_that_is_wrong(client, query, pointer):
    commit(lambda rows: rows.device())
    (field,) = refused(client.get(f"/v1/kernels/gemm/best?{query}"), 422, "invalid-request")["errors"]
    assert (field["location"], field["pointer"]) == ("query", pointer)
    assert field.get("example") or pointer == "#/shap"


def test_best_of_unknown_kernel_or_device_model_is_not_found(client):
    commit(lambda rows: rows.device())
    kernel = refused(client.get(BEST.replace("gemm", "nothing")), 404, "not-found")
    assert "gemm" in kernel["detail"]
    assert kernel["missing"] == "kernel"
    model = refused(client.get(BEST.replace("h200", "none")), 404, "not-found")
    assert "nvidia-h200" in model["detail"]
    assert model["missing"] == "device model"


def test_best_without_any_device_says_what_to_do(client):
    response = client.get("/v1/kernels/gemm/best?shape=m=1,n=1,k=1")
    assert the_field(response) == ("query", "#/device_model")
    assert "worker" in response.json()["detail"]


def test_batch_answers_each_shape(client):
    commit(lambda rows: rows.best())
    response = client.post("/v1/kernels/gemm/best:batch", json={"shapes": [SHAPE, SHAPE | {"m": 300}]})
    assert [answer["match"] for answer in response.json()["items"]] == ["exact", "nearest"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"shapes": []}, "#/shapes"),
        ({"shapes": [SHAPE] * 1001}, "#/shapes"),
        ({"shapes": [SHAPE, {"m": 1}]}, "#/shapes/1/n"),
        ({"shapes": [SHAPE, SHAPE | {"m": "1"}]}, "#/shapes/1/m"),
        ({"dtype": "int4"}, "#/dtype"),
    ],
)
def test_batch_names_the_field_that_is_wrong(client, change, pointer):
    commit(lambda rows: rows.device())
    response = client.post("/v1/kernels/gemm/best:batch", json={"shapes": [SHAPE]} | change)
    assert the_field(response) == ("body", pointer)


def test_job_is_accepted_stored_and_listed(client):
    commit(lambda rows: rows.device())
    response = client.post("/v1/jobs", json=JOB)
    assert (response.status_code, response.json()["state"]) == (202, "queued")
    path = response.headers["location"]
    assert client.get(path).json() == response.json()
    assert [job["id"] for job in client.get("/v1/jobs?state=queued").json()["items"]] == [response.json()["id"]]
    assert client.get("/v1/jobs?state=done").json() == {"items": [], "next_cursor": None}


def test_identical_open_job_is_joined(client):
    commit(lambda rows: rows.device())
    first, second = client.post("/v1/jobs", json=JOB), client.post("/v1/jobs", json=JOB)
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.headers["location"] == second.headers["location"]


def test_idempotency_key_stands_for_one_body(client):
    commit(lambda rows: rows.device())
    headers = {"Idempotency-Key": "a-key"}
    first = client.post("/v1/jobs", json=JOB, headers=headers)
    assert client.post("/v1/jobs", json=JOB, headers=headers).json()["id"] == first.json()["id"]
    refused(client.post("/v1/jobs", json=JOB | {"seed": 1}, headers=headers), 409, "conflict")
    response = client.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "two words"})
    assert the_field(response) == ("header", "#/Idempotency-Key")


def test_dry_run_stores_nothing(client):
    commit(lambda rows: rows.device())
    response = client.post("/v1/jobs", json=JOB | {"dry_run": True})
    assert response.status_code == 200
    assert response.json()["space_size"] == sum(response.json()["space_by_variant"].values()) > 100
    assert client.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kernel": "nothing"}, "#/kernel"),
        ({"kernel": 7}, "#/kernel"),
        ({"shape": {}}, "#/shape/m"),
        ({"shape": SHAPE | {"m": 0}}, "#/shape/m"),
        ({"shape": SHAPE | {"m": True}}, "#/shape/m"),
        ({"shape": SHAPE | {"m": 1.5}}, "#/shape/m"),
        ({"shape": dict.fromkeys("mnk", 2**31 - 1)}, "#/shape"),
        ({"dtype": "float8"}, "#/dtype"),
        ({"options": {"trans_q": True}}, "#/options/trans_q"),
        ({"options": {"trans_a": "maybe"}}, "#/options/trans_a"),
        ({"device_model": "nothing"}, "#/device_model"),
        ({"device": "nothing"}, "#/device"),
        ({"variants": ["nothing"]}, "#/variants"),
        ({"variants": []}, "#/variants"),
        ({"budget": {}}, "#/budget"),
        ({"budget": {"trials": 0}}, "#/budget/trials"),
        ({"budget": {"trials": 10**9}}, "#/budget/trials"),
        ({"budget": {"seconds": -1}}, "#/budget/seconds"),
        ({"budget": {"seconds": 1e9}}, "#/budget/seconds"),
        ({"compiler": "gcc"}, "#/compiler"),
        ({"sampler": "magic"}, "#/sampler"),
        ({"seed": 2**40}, "#/seed"),
        ({"priority": 1000}, "#/priority"),
    ],
)
def test_job_names_the_field_that_is_wrong_and_stores_nothing(client, change, pointer):
    commit(lambda rows: rows.device())
    assert the_field(client.post("/v1/jobs", json=JOB | change)) == ("body", pointer)
    with transaction() as session:
        assert session.query(models.TuningJob).count() == session.query(models.Problem).count() == 0


def test_unknown_field_of_a_job_is_refused(client):
    response = client.post("/v1/jobs", json=JOB | {"trails": 5})
    assert refused(response, 422, "invalid-request")["errors"][0]["pointer"] == "#/trails"


def test_every_wrong_field_is_named_at_once(client):
    response = client.post("/v1/jobs", json={"kernel": 1, "shape": {}, "seed": -1})
    pointers = {field["pointer"] for field in refused(response, 422, "invalid-request")["errors"]}
    assert pointers == {"#/kernel", "#/seed"}


def test_job_without_a_body_is_refused(client):
    refused(client.post("/v1/jobs"), 422, "invalid-request")


def test_queued_job_is_cancelled_and_finished_one_is_not(client):
    commit(lambda rows: rows.device())
    path = client.post("/v1/jobs", json=JOB).headers["location"]
    assert client.post(f"{path}/cancel").json()["state"] == "cancelled"
    assert client.post(f"{path}/cancel").status_code == 200
    done = commit(lambda rows: rows.best()).job_id
    assert "done already" in refused(client.post(f"/v1/jobs/{done}/cancel"), 409, "conflict")["detail"]


@pytest.mark.parametrize("rest", ["", "/trials", "/events"])
def test_unknown_job_is_not_found(client, rest):
    refused(client.get(f"/v1/jobs/{uuid.uuid4()}{rest}"), 404, "not-found")
    assert the_field(client.get(f"/v1/jobs/nonsense{rest}")) == ("path", "#/job_id")


def test_lists_page_by_cursor_without_gaps(client):
    def three(rows):
        return [rows.trial_of(rows.best(SHAPE | {"m": m})).study_id for m in (1, 2, 3)]

    made = commit(three)
    for path, identity in (("/v1/studies", "id"), ("/v1/results", "study_id"), ("/v1/jobs", "study_id")):
        seen, cursor = [], ""
        while cursor is not None:
            page = client.get(f"{path}?limit=2{cursor and '&cursor=' + cursor}").json()
            seen += [item[identity] for item in page["items"]]
            cursor = page["next_cursor"]
        assert seen == made[::-1], path


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/studies", "/v1/results"])
@pytest.mark.parametrize(
    "query", ["cursor=garbage!", "cursor=%F0%9F%98%80", "cursor=OTk5OTk5OTk5OTk5", "limit=0", "limit=x"]
)
def test_page_that_was_never_handed_out_is_refused(client, path, query):
    assert the_field(client.get(f"{path}?{query}")) == ("query", f"#/{query.split('=')[0]}")


def test_study_tells_what_its_trials_came_to(client):
    def study_of_two(rows):
        best = rows.best(time_ms=2.0)
        study, job = (
            rows.session.get_one(models.Study, rows.trial_of(best).study_id),
            rows.session.get_one(models.TuningJob, best.job_id),
        )
        rows.trial(study, job, TILED_16, outcome=Outcome.TIMED_OUT, source="another")
        return study.id

    path = f"/v1/studies/{commit(study_of_two)}"
    found = client.get(path).json()
    assert (found["trials"], found["outcomes"], found["best_ms"]) == (2, {"measured": 1, "timed_out": 1}, 2.0)
    assert [trial["outcome"] for trial in client.get(f"{path}/trials").json()["items"]] == ["measured", "timed_out"]


def test_the_best_of_a_study_and_its_job_is_the_settled_winner_not_the_luckiest_trial(client):
    def settled(rows):
        best = rows.best(time_ms=2.0)
        job = rows.session.get_one(models.TuningJob, best.job_id)
        job.result = {"stopped_by": "trials", "best": {"time_ms": 2.0}, "gain_over_default": 1.5}
        study = rows.session.get_one(models.Study, rows.trial_of(best).study_id)
        rows.trial(study, job, TILED_32, 1.25)
        return study.id, job.id

    study_id, job_id = commit(settled)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert (study["best_ms"], study["best_trial"], study["fastest_ms"]) == (2.0, 0, 1.25)
    job = client.get(f"/v1/jobs/{job_id}").json()
    assert (job["best_ms"], job["gain_over_default"]) == (2.0, 1.5)


@pytest.mark.parametrize("rest", ["", "/trials"])
def test_unknown_study_is_not_found(client, rest):
    refused(client.get(f"/v1/studies/7{rest}"), 404, "not-found")
    assert the_field(client.get(f"/v1/studies/99999999999{rest}")) == ("path", "#/study_id")


def test_results_can_be_narrowed(client):
    commit(lambda rows: [rows.best(), rows.best(model=H100)])
    assert len(client.get("/v1/results").json()["items"]) == 2
    (only,) = client.get("/v1/results?device_model=nvidia-h100&kernel=gemm").json()["items"]
    assert (only["device_model"], only["gain_over_default"]) == ("nvidia-h100", 2)
    assert client.get("/v1/results?kernel=gemv").json()["items"] == []


def test_devices_and_models_are_listed(client):
    commit(lambda rows: [rows.device(H200), rows.device(CPU)])
    assert {device["uuid"] for device in client.get("/v1/devices").json()["items"]} == {
        "GPU-nvidia-h200",
        "GPU-cpu:test",
    }
    assert [model["slug"] for model in client.get("/v1/device-models").json()["items"]] == ["cpu:test", "nvidia-h200"]


def test_kernels_are_declared_with_their_spaces(client):
    listed = client.get("/v1/kernels").json()["items"]
    assert {"gemm", "gemv"} <= {kernel["name"] for kernel in listed}
    assert client.get("/v1/kernels/gemm").json()["declaration"]["axes"] == ["m", "n", "k"]
    refused(client.get("/v1/kernels/nothing"), 404, "not-found")


def test_optional_axes_are_declared_and_answered(client):
    commit(lambda rows: rows.best({"m": 64, "n": 64, "k": 64, "batch": 9}))
    declared = client.get("/v1/kernels/gemm").json()["declaration"]["optional_axes"]
    assert [axis["name"] for axis in declared] == ["batch", "lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c"]
    found = client.get("/v1/kernels/gemm/best?shape=m=64,n=64,k=64,batch=9,lda=64&device_model=nvidia-h200").json()
    assert (found["match"], found["problem"]["shape"]["batch"]) == ("exact", 9)


def test_source_comes_with_the_macros_of_the_problem(client):
    found = client.get("/v1/kernels/gemm/source?variant=tiled&shape=m=1,n=2,k=3&configuration=TILE_WIDTH=32").json()
    assert found["definitions"]["SHAPE_N"] == "2"
    assert "-DTILE_WIDTH=32" in found["flags"]
    assert found["entry"] in found["source"]


def test_older_source_of_a_result_can_be_read(client):
    commit(lambda rows: rows.best(source="an older source"))
    found = client.get(f"/v1/kernels/gemm/source?variant=tiled&source_hash={'0' * 64}").json()
    assert found["source"] == "an older source"
    refused(client.get(f"/v1/kernels/gemm/source?variant=tiled&source_hash={'1' * 64}"), 404, "not-found")


@pytest.mark.parametrize(
    ("query", "pointer"),
    [("configuration=TILE_WIDTH=7", "#/configuration/TILE_WIDTH"), ("configuration=WARPS=1", "#/configuration/WARPS")],
)
def test_configuration_outside_the_declaration_gets_no_source(client, query, pointer):
    assert the_field(client.get(f"/v1/kernels/gemm/source?variant=tiled&{query}")) == ("query", pointer)


def test_source_of_unknown_variant_is_not_found(client):
    assert "tiled" in refused(client.get("/v1/kernels/gemm/source?variant=nothing"), 404, "not-found")["detail"]


def test_health_and_readiness(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ok"}


def test_every_problem_type_explains_itself(client):
    for kind in all_types():
        found = client.get(kind.uri).json()
        assert (found["status"], bool(found["remedy"])) == (kind.status, True)
    refused(client.get("/problems/nothing"), 404, "not-found")


def test_unknown_path_and_method_are_problems_too(client):
    refused(client.get("/v1/nothing"), 404, "no-such-path")
    response = client.request("DELETE", "/v1/jobs")
    refused(response, 405, "method-not-allowed")
    assert response.headers["allow"]


def test_job_whose_text_the_database_could_not_keep_is_refused(client):
    commit(lambda rows: rows.device())
    for text in ("a\\u0000b", "a\\ud800b"):
        body = json.dumps(JOB | {"device": "X"}).replace("X", text)
        response = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert refused(response, 422, "invalid-request")["errors"][0]["pointer"] == "#/device"
