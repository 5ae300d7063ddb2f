"""Two sides compared."""

import html
import json
import re
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from factories import H100, H200, NAIVE, NEW, OLD, SHAPE, TILED_16, TILED_32
from shown_matrix import SQUARE
from sqlalchemy import select

from tilewright.service.dashboard.charts.small import DotPlot
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages import compare as compare_page
from tilewright.service.operations.staleness.comparisons import TimeInterval, compare
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views.observed_results import ResultTally
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

SHAPES = [SHAPE | {"m": m} for m in (100, 200, 300)]


@pytest.fixture
def two_environments(commit):
    """Ids of an old and a new environment: one problem twice as fast in the new, one level, one slower, one gone."""

    def make(rows):
        for shape, old_ms, new_ms in zip(SHAPES, (1.0, 1.0, 1.0), (0.5, 1.01, 1.25), strict=True):
            rows.best(shape, old_ms, environment=OLD)
            rows.best(shape, new_ms, environment=NEW)
        rows.best(SHAPE | {"m": 400}, 3.0, environment=OLD)
        by_driver = {row.driver: row.id for row in rows.session.scalars(select(models.Environment))}
        return by_driver[OLD.driver], by_driver[NEW.driver]

    return commit(make)


def path(old, new):
    return f"/compare?kernel=gemm&a=nvidia-h200&a_environment={old}&b=nvidia-h200&b_environment={new}"


def test_without_sides_it_says_to_choose(page, commit):
    commit(lambda rows: rows.device())
    assert "Choose a device model for A and for B" in page("/compare")


def test_ratios_are_drawn_with_their_intervals_and_lead_to_the_history(page, two_environments):
    shown = page(path(*two_environments) + "&show=all")
    options = json.loads(re.search(r'id="ratios-options">(.*?)</script>', shown, re.DOTALL)[1])
    dots = {one["name"]: one["data"] for one in options["series"] if one["type"] == "scatter"}
    (better,) = dots["better"]
    assert better["value"][:2] == [f"gemm m={SHAPES[0]['m']},n=100,k=784 float32", 2.0]
    assert better["value"][2] < 2.0 < better["value"][3]
    assert better["href"].startswith("/kernels/gemm/problem?shape=m=100,")
    assert [len(dots[verdict]) for verdict in ("same", "worse")] == [1, 1]
    assert options["yAxis"]["min"] < 0.8
    assert options["yAxis"]["max"] > 2.0


def test_environments_are_compared_over_what_both_have(page, two_environments):
    shown = page(path(*two_environments))
    assert f"{TIMES}1.17" in shown  # (2 x 1/1.01 x 0.8) ** (1/3)
    for part in ("1 better", "1 same", "1 worse", "1 missing in B", "3 problems"):
        assert part in shown.replace("</span> ", "")
    assert shapes(shown) == ["m=100", "m=300"]  # the largest change first; what stayed the same is left out


def shapes(shown: str) -> list[str]:
    """The first axis of each row of the comparison."""
    return re.findall(r'<tr class="\w+"><th scope="row"><a [^>]+>gemm (m=\d+)', shown)


def test_all_that_both_have_is_shown_on_request_and_sorted_by_any_column(page, two_environments):
    everything = path(*two_environments) + "&show=all"
    assert shapes(page(everything)) == ["m=100", "m=300", "m=200"]
    assert shapes(page(everything + "&sort=ratio")) == ["m=300", "m=200", "m=100"]
    assert shapes(page(everything + "&sort=problem")) == ["m=100", "m=200", "m=300"]
    assert shapes(page(everything + "&sort=-b")) == ["m=300", "m=200", "m=100"]
    assert 'name="show" value="all"' in page(everything)  # the form keeps it


def test_what_one_side_lacks_is_folded_below_the_table(page, two_environments):
    table, folded = page(path(*two_environments)).split("</table>")
    assert "m=400" not in table
    assert '<details id="missing-in-b"><summary>1 problem missing in B' in folded
    assert "m=400" in folded


def test_the_interval_of_a_ratio_holds_level_only_where_it_is_called_the_same(client, page, two_environments):
    link = page(path(*two_environments)).split('Data: <a href="')[1].split('"')[0].replace("&amp;", "&")
    both = [item for item in client.get(link).json()["items"] if item["speedup"]]
    assert {item["verdict"] for item in both} == {"better", "same", "worse"}
    for item in both:
        low, high = item["interval"]
        assert low < item["speedup"] < high
        assert (low <= 1 <= high) == (item["verdict"] == "same")


def test_dots_of_one_table_share_an_axis_with_level_in_its_middle():
    plot = DotPlot.of([(0.5, 0.6), (0.98, 1.02), (1.2, 1.3)])
    places = [plot.dot(value, (value * 0.99, value * 1.01)).x for value in (0.5, 1.0, 1.25)]
    assert places == sorted(places)
    assert places[1] == plot.middle
    assert all(0 < place < plot.width for place in places)
    assert [text for _, text in plot.ticks] == [f"{TIMES}0.50", f"{TIMES}1.00", f"{TIMES}2.00"]
    assert plot.x(0.5) + plot.x(2.0) == pytest.approx(2 * plot.middle, abs=0.2)


def test_sides_that_are_level_say_so_and_lead_to_all(page, commit):
    commit(lambda rows: [rows.best(time_ms=1.0, model=H100), rows.best(time_ms=1.0, model=H200)])
    shown = page("/compare?kernel=gemm&a=nvidia-h100&b=nvidia-h200")
    assert "Nothing changed beyond the noise." in shown
    assert "show=all" in shown


def test_data_link_has_the_same_verdicts_as_the_schedules_comparison(client, page, two_environments):
    link = page(path(*two_environments)).split('Data: <a href="')[1].split('"')[0].replace("&amp;", "&")
    for item in client.get(link).json()["items"]:
        if item["speedup"] is None:
            continue
        sides = [TimeInterval(ms, ms * 0.99, ms * 1.01) for ms in (item["a_ms"], item["b_ms"])]
        verdict, ratio, threshold = compare(*sides)
        assert item["verdict"] == verdict.value
        assert item["speedup"] == pytest.approx(1 / ratio)
        assert item["threshold"] == pytest.approx(threshold)
    assert len(client.get(link + "&format=csv").text.splitlines()) == 5


def test_device_models_are_compared(page, commit):
    commit(lambda rows: [rows.best(time_ms=1.0, model=H100), rows.best(time_ms=0.5, model=H200)])
    assert f"{TIMES}2.00" in page("/compare?kernel=gemm&a=nvidia-h100&b=nvidia-h200")


def test_a_stale_result_that_was_measured_last_is_not_compared(page, commit):
    """By a worker whose driver is older, say: `best` answers with the fresh one."""

    def make(rows):
        rows.best(time_ms=1.0, environment=OLD).verified_at = datetime(2026, 11, 20, tzinfo=UTC)
        rows.best(time_ms=2.0, environment=NEW).verified_at = datetime(2026, 11, 10, tzinfo=UTC)
        rows.best(time_ms=3.0, model=H100, environment=NEW)

    commit(make)
    shown = page("/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100")
    assert f"<b>{TIMES}0.67</b>" in shown


def test_a_time_before_every_result_has_none(page, commit):
    commit(lambda rows: rows.best())
    shown = page("/compare?kernel=gemm&a=nvidia-h200&a_at=2001-01-01T00:00&b=nvidia-h200")
    assert "1 missing in A" in shown.replace("</span> ", "")


@pytest.mark.parametrize("query", ["a_environment=first&a=x&b=y", "a_at=yesterday&a=x&b=y"])
def test_a_side_that_is_wrong_is_refused(page, query):
    assert "This address is not right" in page(f"/compare?{query}", 422)


@pytest.mark.parametrize("side", ["a", "b"])
def test_an_environment_of_another_device_model_is_refused_by_its_field(client, page, commit, side):
    def make(rows):
        rows.best(model=H200, environment=OLD)
        rows.best(model=H100, environment=NEW)
        return rows.session.scalars(select(models.Environment.id).where(models.Environment.driver == NEW.driver)).one()

    foreign = commit(make)
    query = f"a=nvidia-h200&b=nvidia-h200&{side}_environment={foreign}"
    message = f"nvidia-h200 has no results in the environment {foreign}."
    assert message in page(f"/compare?kernel=gemm&{query}", 422)
    refused = client.get(f"/v1/kernels/gemm/compare?{query}")
    assert refused.status_code == 422
    assert f"{side}_environment" in refused.text


def test_more_problems_than_are_shown_are_counted(client, page, commit, monkeypatch):
    commit(lambda rows: [rows.best(SHAPE | {"m": m}) for m in (1, 2, 3)])
    path = "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200&show=all"
    assert "are shown" not in page(path)
    monkeypatch.setattr(compare_page, "SHOWN_ROWS", 2)
    shown = page(path)
    assert "2 of 3 problems are shown; the data links have 3." in shown
    link = shown.split('Data: <a href="')[1].split('"')[0].replace("&amp;", "&")
    assert len(client.get(link).json()["items"]) == 3


def test_the_data_have_as_many_rows_as_the_api_gives(client):
    path = "/v1/kernels/gemm/compare?a=x&b=y&limit="
    assert client.get(f"{path}{compare_page.MOST_ROWS}").status_code == 200
    assert client.get(f"{path}{compare_page.MOST_ROWS + 1}").status_code == 422


def test_compare_in_an_empty_installation_says_how_to_start(page):
    assert "No device has been registered yet" in page("/compare")


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
