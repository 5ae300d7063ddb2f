"""What people write down: notes on studies, regressions that they acknowledge, views that they save."""

import html
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from factories import H100, NAIVE, NEW, OLD, TILED_16, TILED_32
from shown_matrix import SQUARE
from sqlalchemy import select

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.observed_results import ResultTally
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

PROBLEM = "/kernels/gemm/problem?shape=m%3D256,n%3D100,k%3D784"
WHY = {"text": "Clocks are <b>capped</b> there."}


@pytest.fixture
def regressed(commit):
    """The ids of a study whose best became a quarter slower, and of one whose best became 4 % slower."""

    def make(rows):
        for shape, slower_ms in ((None, 1.25), (SQUARE, 1.04)):
            of = {} if shape is None else {"shape": shape}
            rows.best(time_ms=1.0, environment=OLD, **of)
            yield rows.trial_of(rows.best(time_ms=slower_ms, environment=NEW, **of)).study_id

    return commit(lambda rows: list(make(rows)))


def attention(client, **query):
    """How many regressions there are, and those listed."""
    found = client.get("/v1/attention", params={"kind": "regressed", **query}).json()
    return found["counts"]["regressed"], [item["study_id"] for item in found["items"]]


def test_an_acknowledged_regression_counts_nowhere_until_its_note_is_deleted(client, page, regressed):
    study, small = regressed
    path = f"/v1/studies/{study}/notes"
    assert attention(client) == (2, [study, small])
    shown = page(PROBLEM)
    assert f'hx-post="{path}"' in shown.split("Regressed on nvidia-h200")[1].split("<h2")[0]
    made = client.post(path, json={**WHY, "acknowledges": True})
    assert made.status_code == 201, made.text
    assert attention(client) == (1, [small])
    assert ResultTally().look()["nvidia-h200", "regressed"] == 1
    assert client.get("/v1/kernels/gemm/matrix").json()["models"][0]["counts"]["regressed"] == 1
    assert "regressed" not in page(f"/studies/{study}").split("</dl>")[0]
    shown = page(PROBLEM)
    assert "Acknowledged by this machine" in shown
    assert "Clocks are &lt;b&gt;capped&lt;/b&gt; there." in shown
    assert client.post(path, json={**WHY, "acknowledges": True}).status_code == 409
    assert client.request("DELETE", f"{path}/{made.json()['id']}").status_code == 204
    assert attention(client) == (2, [study, small])


def test_small_regressions_are_hidden_on_request_and_the_cause_is_linked(client, page, regressed):
    study, _ = regressed
    assert attention(client, least_slowdown=0.05) == (1, [study])
    shown = page("/attention?kind=regressed&least_slowdown=0.05")
    assert shown.count(">what changed</a>") == 1
    assert "takes 25 % longer" in shown
    assert "least_slowdown=0.05" in shown.split("Data:")[1]
    assert page("/attention?kind=regressed&least_slowdown=none").count(">what changed</a>") == 2


def test_the_latest_changes_say_how_fast_and_which_regressed(page, regressed):
    shown = page("/history")
    assert shown.count("▼ regressed") == 2
    assert f"{TIMES}0.80" in shown


def test_a_study_shows_its_notes_and_takes_a_hundred(client, page, commit):
    study = commit(lambda rows: rows.study()[0].id)
    path = f"/v1/studies/{study}/notes"
    assert "none" in page(f"/studies/{study}").split('id="study-notes"')[1].split("</div>")[0]
    assert client.post(path, json={"text": " "}).status_code == 422
    assert client.post("/v1/studies/999999/notes", json=WHY).status_code == 404
    assert client.post(path, json={**WHY, "acknowledges": True}).status_code == 409
    for _ in range(100):
        assert client.post(path, json=WHY).status_code == 201
    assert client.post(path, json=WHY).status_code == 403
    assert [note["written_by"] for note in client.get(path).json()["items"]] == ["this machine"] * 100
    assert page(f"/studies/{study}").count("capped") == 100
    assert client.request("DELETE", f"{path}/1000000").status_code == 404


def test_a_page_is_saved_under_a_name_and_found_again(client, page, commit):
    commit(lambda rows: rows.best())
    shown = page("/?kernel=gemm&order=ratio")
    link = html.unescape(re.search(r'href="(/views[^"]*)"', shown)[1])
    (address,) = parse_qs(urlsplit(link).query)["address"]
    assert address == "/?kernel=gemm&order=ratio"
    assert 'value="/?kernel=gemm&amp;order=ratio"' in page(link)
    for _ in range(2):  # the second one replaces the first
        saved = client.post("/v1/views", json={"name": "worst/first", "address": address})
        assert saved.status_code == 200, saved.text
    assert len(client.get("/v1/views").json()["items"]) == 1
    assert '<a href="/?kernel=gemm&amp;order=ratio">worst/first</a>' in page("/views")


@pytest.mark.parametrize(
    "address", ["//elsewhere.example", "https://elsewhere.example", "/\\elsewhere", "jobs", "/a b"]
)
def test_a_view_leads_to_this_server_alone(client, address):
    refused = client.post("/v1/views", json={"name": "x", "address": address})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "#/address"


def test_a_view_is_deleted_by_its_name(client):
    client.post("/v1/views", json={"name": "mine", "address": "/jobs"})
    assert client.request("DELETE", "/v1/views/mine").status_code == 204
    assert client.request("DELETE", "/v1/views/mine").status_code == 404


def test_searches_on_two_device_models_are_laid_over_one_another(page, commit):
    def make(rows):
        for model, sampler, times in (({}, "gp", (3.0, 4.0, 2.0)), ({"model": H100}, "random", (5.0, None, 1.0))):
            study, problem, device = rows.study(**model)
            job = rows.job(problem, device, study, trials_done=3)
            job.sampler = sampler
            for configuration, time_ms in zip((TILED_16, TILED_32, NAIVE), times, strict=True):
                outcome = Outcome.MEASURED if time_ms else Outcome.LAUNCH_FAILED
                rows.trial(study, job, configuration, time_ms, outcome=outcome)

    commit(make)
    shown = page(PROBLEM)
    charts = re.findall(r'id="searches-by-(\w+)-options">(.*?)</script>', shown, re.DOTALL)
    series = {name: json.loads(text)["series"] for name, text in charts}
    lines = {line["name"].rpartition(",")[0]: [p["value"] for p in line["data"]] for line in series["trial"]}
    assert lines == {
        "nvidia-h200, gp": [[1, 3.0], [3, 2.0]],
        "nvidia-h100, random": [[1, 5.0], [3, 1.0]],
    }
    assert len({line["lineStyle"]["color"] for line in series["trial"]}) == 2
    with transaction() as session:
        jobs = {str(job_id) for job_id in session.scalars(select(models.TuningJob.id))}
    assert {p["href"].rpartition("/")[2] for line in series["time"] for p in line["data"]} <= jobs
