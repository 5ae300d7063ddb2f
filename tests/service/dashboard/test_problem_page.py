"""The page of a problem: its bests, their history, its jobs; and how a problem is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from factories import H100, NEW, OLD, SHAPE, TILED_32
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from tilewright.service.cli.arguments import describe
from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations import registry
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.registry import catalogue, problem_answer
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.models import JobState

PATH = "/kernels/gemm/problem?shape=m%3D256,n%3D100,k%3D784"


@pytest.fixture
def slower(commit):
    """A best that a new driver made a quarter slower, with the library beside both."""
    commit(
        lambda rows: [
            rows.best(time_ms=1.0, library_ms=1.5, environment=OLD),
            rows.best(time_ms=1.25, library_ms=1.0, environment=NEW),
        ]
    )


def drawn(shown: str) -> list[dict]:
    """The series of the chart."""
    return json.loads(re.search(r'id="history-options">(.*?)</script>', shown, re.DOTALL)[1])["series"]


def test_the_chart_has_the_librarys_line_and_a_mark_where_the_driver_came(page, slower):
    best, library = drawn(page(PATH))
    assert [point["value"][1] for point in best["data"]] == [1.0, 1.25]
    assert [point["value"][1] for point in library["data"]] == [1.5, 1.0]
    assert library["name"] == "library on nvidia-h200"
    (mark,) = best["markLine"]["data"]
    assert mark["name"] == "driver, toolkit, compiler"
    assert "580.159" in best["data"][1]["name"]
    assert mark["xAxis"] == best["data"][1]["value"][0]
    assert best["data"][1]["itemStyle"] == {"color": "--bad"}
    assert "itemStyle" not in best["data"][0]


def test_each_device_model_has_its_own_line_and_library_only_where_one_was_timed(page, commit):
    commit(lambda rows: [rows.best(library_ms=2.0), rows.best(model=H100)])
    assert [series["name"] for series in drawn(page(PATH))] == ["nvidia-h100", "nvidia-h200", "library on nvidia-h200"]


def test_a_regression_is_said_on_top_and_in_its_row(page, slower):
    shown = page(PATH)
    assert f"Regressed on nvidia-h200:</b> the current best takes {TIMES}1.25 the time" in shown
    assert "driver, toolkit, compiler" in shown.split("Regressed")[1].split("</p>")[0]
    assert shown.count('<tr class="worse">') == 1


def test_a_regression_is_red_wherever_its_result_is_shown(client, page, slower):
    assert [item["slowdown"] for item in client.get("/v1/results").json()["items"]] == [1.25, None]
    for path in ("/results", "/device-models/nvidia-h200", "/kernels/gemm"):
        shown = page(path)
        assert shown.count('class="regressed"') == 1, path
        assert f"{TIMES}1.25 the time before" in shown
    regressed = client.get("/v1/results").json()["items"][0]
    assert page(f"/studies/{regressed['study_id']}").split("</dl>")[0].count('class="regressed"') == 1
    assert page("/?kernel=gemm").count('class="note regressed"') == 1
    assert "Regressed:" in page("/ask?kernel=gemm&shape=m%3D256,n%3D100,k%3D784&device_model=nvidia-h200")


def test_only_the_newest_best_of_a_device_model_is_current_and_may_have_regressed(page, slower, commit):
    commit(lambda rows: rows.best(time_ms=0.5, environment=replace(NEW, driver="590.1")))
    shown = page(PATH)
    assert "Regressed" not in shown
    assert (shown.count("<b>current</b>"), shown.count("still the best of its environment")) == (1, 2)


def test_without_a_problem_it_asks_for_one_and_offers_those_that_changed(page, slower):
    shown = page("/history")
    assert '<input name="shape"' in shown
    link = r'href="/kernels/gemm/problem\?shape=[^"]+#published">gemm m=256,n=100,k=784 float32</a>'
    assert re.search(link, shown)
    assert "No best of gemv has been replaced yet" in page("/history?kernel=gemv")


def test_sizes_may_go_without_names(client, page, slower):
    for shape in ("m=256,n=100,k=784", "256x100x784"):
        moved = client.get(f"/history?kernel=gemm&shape={shape}")
        assert (moved.status_code, moved.headers["location"]) == (303, PATH.replace("%3D", "=") + "&dtype=float32")
        assert "<h1>gemm m=256,n=100,k=784 float32</h1>" in page(f"/kernels/gemm/problem?shape={shape}")


def test_a_problem_that_cannot_be_read_keeps_the_form(page):
    shown = page("/history?kernel=gemm&shape=12", 422)
    assert 'value="12"' in shown
    assert "is not of the form name=value" in shown.split('role="alert"')[1]


def test_history_is_sorted_by_any_column(page, slower):
    def times(query):
        table = page(PATH + query).split('id="published"')[1]
        return re.findall(r'data-label="Time"><a [^>]+>([\d.]+)', table)

    assert times("") == ["1.25", "1.00"]
    assert times("&sort=time") == ["1.00", "1.25"]
    assert times("&sort=-library") == ["1.00", "1.25"]
    assert times("&sort=-previous") == ["1.25", "1.00"]  # the first has none
    assert "must be one of verified" in page(PATH + "&sort=x", 422)


@pytest.fixture
def faster(commit):
    """A best that is twice as fast in a new environment."""
    commit(lambda rows: [rows.best(time_ms=1.0, environment=OLD), rows.best(time_ms=0.5, environment=NEW)])


def test_history_says_what_changed_and_whether_it_is_faster(client, page, faster):
    shown = page(PATH)
    newest = shown.split('id="published"')[1].split("<tbody>")[1].split("<tr")[1]
    assert "better" in newest
    assert f"{TIMES}2.00" in newest
    assert "driver, toolkit, compiler" in newest
    assert '"type":"time"' in shown
    found = client.get("/v1/kernels/gemm/history?shape=m%3D256,n%3D100,k%3D784").json()["items"]
    assert [(item["verdict"], item["stands"]) for item in found] == [(None, True), ("better", True)]


def test_history_keeps_what_was_retracted(page, commit):
    def make(rows):
        best = rows.best(configuration=TILED_32)
        best.retracted_at, best.retracted_reason = best.verified_at, "wrong clocks"

    commit(make)
    assert "retracted: wrong clocks" in page(PATH)


def test_history_of_nothing_leads_on(page, commit):
    with transaction():
        commit(lambda rows: rows.device())
    shown = page("/kernels/gemm/problem?shape=m%3D1,n%3D2,k%3D3")
    assert "tilewright tune gemm --shape m=1,n=2,k=3 --device-model nvidia-h200" in shown
    assert "This address is not right" in page("/kernels/gemm/problem?shape=m%3D0,n%3D2,k%3D3", 422)


def test_each_device_model_has_a_row_with_its_interval_verdict_and_button(page, commit):
    def make(rows):
        best = rows.best(library_ms=1.5)
        best.ci_low_ms, best.ci_high_ms = 0.99, 1.3
        rows.device(H100)
        rows.best(SHAPE | {"m": 512}, model=H100)

    commit(make)
    h100, h200 = model_rows(page(PATH))
    assert "0.990 to 1.30" in h200 or "990 to 1,300" in h200
    assert f"{TIMES}1.50" in h200
    assert "ahead of cuBLAS" in h200
    assert "Tune again" in h200
    assert "not tuned. Answer: <span>configuration of" in h100
    assert ">Tune<" in h100


def model_rows(shown: str) -> list[str]:
    """The rows of the table of device models, by name."""
    table = shown.split('aria-label="Best on each device model"')[1].split("</table>", maxsplit=1)[0]
    return sorted(table.split("<tbody>")[1].split("<tr>")[1:], key=lambda row: "nvidia-h200" in row)


def test_jobs_studies_requests_and_launch_code_are_on_the_page(page, commit):
    def make(rows):
        rows.best()
        study, problem, device = rows.study(SHAPE, model=H100)
        rows.job(problem, device, study, JobState.QUEUED)
        kernel = registry.catalogue().get("gemm")
        asked = RequestedProblem.of(kernel.problem(SHAPE), "nvidia-h100")
        demand.count(rows.session, {asked: 7})

    commit(make)
    shown = page(PATH)
    for words in ("requested 7 times", "○ queued", "Run again", "Cancel", "Launch it from an application", "study "):
        assert words in shown, words


def test_a_problem_of_a_kernel_that_is_not_here_has_a_page(page, commit):
    def make(rows):
        best = rows.best()
        problem = rows.session.get_one(models.Problem, best.problem_id)
        rows.session.get_one(models.Kernel, problem.kernel_id)
        foreign = models.Kernel(name="theirs", declaration={"axes": ["x"], "options": [], "variants": []})
        rows.session.add(foreign)
        rows.session.flush()
        problem.kernel_id, problem.shape, problem.options, problem.hash = foreign.id, {"x": 5}, {}, "theirs"

    commit(make)
    assert "<h1>theirs x=5 float32</h1>" in page("/kernels/theirs/problem?shape=x=5&dtype=float32")
    page("/kernels/theirs/problem?shape=x=6&dtype=float32", 404)


@pytest.mark.parametrize("path", ["/", "/results", "/jobs", "/attention", "/demand", "/device-models/nvidia-h200"])
def test_every_link_to_a_problem_leads_to_its_page(page, commit, path):
    def make(rows):
        rows.best(library_ms=0.5)
        kernel = registry.catalogue().get("gemm")
        asked = RequestedProblem.of(kernel.problem(SHAPE | {"m": 9}), "nvidia-h200")
        demand.count(rows.session, {asked: 7})

    commit(make)
    sizes = {"/": f"256 {TIMES} 100 {TIMES} 784", "/demand": "m=9,n=100,k=784"}.get(path, "m=256,n=100,k=784")
    links = re.findall(r'<a [^>]*href="([^"]+)"[^>]*>([^<]*(?:<(?!/a)[^<]*)*)</a>', page(path).split("<main")[1])
    plain = [(href, re.sub(r"<[^>]+>|, ", lambda m: "," if m[0] == ", " else "", text)) for href, text in links]
    named = [href for href, text in plain if sizes in text and "Tune" not in text and ":" not in text]
    assert named
    assert all(href.startswith("/kernels/gemm/problem?shape=m=") for href in named), named


PATHS = (
    "/?kernel=gemm",
    "/results",
    "/attention",
    "/jobs",
    "/jobs/{job}",
    "/studies/{study}",
    "/studies/{study}/trials/0",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200&show=all",
    "/kernels/gemm/problem?shape={shape}",
    "/ask?kernel=gemm&device_model=nvidia-h200&shape={shape}",
    "/device-models/nvidia-h200",
)
OPTIONAL = re.compile(r"\b(batch|ld[abc]|stride_[abc])(=|%3D|&#39;: |': )(\d+)")


@pytest.fixture
def stored(commit):
    """A gemm with a best, stored for a shape."""

    def store(shape):
        def make(rows):
            rows.best(shape, environment=OLD)
            best = rows.best(shape, library_ms=0.5)
            study = rows.session.scalars(select(models.Study).where(models.Study.problem_id == best.problem_id)).first()
            job = rows.session.scalars(select(models.TuningJob).where(models.TuningJob.study_id == study.id)).one()
            (problem,) = rows.session.scalars(select(models.Problem).options(joinedload(models.Problem.kernel)))
            return problem_answer(problem), {"job": job.id, "study": study.id}

        return commit(make)

    return store


@pytest.mark.parametrize("path", PATHS)
def test_axes_at_their_defaults_are_said_nowhere(page, stored, path):
    every = dict(catalogue().get("gemm").problem(SHAPE).shape)
    assert set(every) > set(SHAPE)
    problem, ids = stored(every)
    shown = page(path.format(shape="m=256,n=100,k=784", **ids))
    assert describe(problem) == "gemm m=256,n=100,k=784 float32"
    assert not OPTIONAL.search(shown)


@pytest.mark.parametrize("path", PATHS)
def test_unusual_axes_are_said_and_no_others(page, stored, path):
    problem, ids = stored({**SHAPE, "batch": 4, "lda": 800})
    shown = page(path.format(shape="m=256,n=100,k=784,batch=4,lda=800", **ids))
    assert describe(problem) == "gemm m=256,n=100,k=784,batch=4,lda=800 float32"
    assert {(name, value) for name, _, value in OPTIONAL.findall(shown)} == {("batch", "4"), ("lda", "800")}


def test_a_long_text_may_break_behind_its_commas_and_a_short_one_stays_whole():
    long = "conv2d batch=8,height=14,width=14,channels=256,filters=256,kernel_h=3<"
    assert str(formatting.wrapping(long)).count(",<wbr>") == long.count(",")
    assert str(formatting.wrapping(long)).endswith("kernel_h=3&lt;")
    assert str(formatting.wrapping("gemm m=4,n=5,k=6 float32")) == "gemm m=4,n=5,k=6 float32"


def test_a_uuid_within_a_sentence_breaks_over_no_two_lines():
    uuid = "GPU-3f2a9c41-b7d6-4e05-a1c8-e97f00112233"
    said = formatting.whole_identifiers(f"<b> of {uuid} and {uuid[4:]}.")
    assert said == f'&lt;b&gt; of <span class="name">{uuid}</span> and <span class="name">{uuid[4:]}</span>.'
    assert formatting.whole_identifiers("2026-11-23 & more") == "2026-11-23 &amp; more"
