"""The history of a problem, and regressions wherever a result is shown."""

import json
import re
from dataclasses import replace

import pytest
from factories import H100, NEW, OLD, TILED_32

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.transaction import transaction

PATH = "/history?kernel=gemm&shape=m%3D256,n%3D100,k%3D784"


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
    assert "580.159" in mark["name"]
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
    assert "Regressed:" in page(PATH.replace("/history", "/ask") + "&device_model=nvidia-h200")


def test_only_the_newest_best_of_a_device_model_is_current_and_may_have_regressed(page, slower, commit):
    commit(lambda rows: rows.best(time_ms=0.5, environment=replace(NEW, driver="590.1")))
    shown = page(PATH)
    assert "Regressed" not in shown
    assert (shown.count("<b>current</b>"), shown.count("still the best of its environment")) == (1, 2)


def test_without_a_problem_it_asks_for_one_and_offers_those_that_changed(page, slower):
    shown = page("/history")
    assert '<input name="shape" required' in shown
    assert re.search(r'href="/history\?kernel=gemm[^"]+">gemm m=256,n=100,k=784 float32</a> on nvidia-h200', shown)
    assert "No best of gemv has been replaced yet" in page("/history?kernel=gemv")


def test_sizes_may_go_without_names(page, slower):
    named, bare = (page(f"/history?kernel=gemm&shape={shape}") for shape in ("m=256,n=100,k=784", "256x100x784"))
    assert "History of gemm m=256,n=100,k=784 float32" in named
    assert "History of gemm m=256,n=100,k=784 float32" in bare


def test_a_problem_that_cannot_be_read_keeps_the_form(page):
    shown = page("/history?kernel=gemm&shape=12", 422)
    assert 'value="12"' in shown
    assert "is not of the form name=value" in shown.split('role="alert"')[1]


def test_history_is_sorted_by_any_column(page, slower):
    def times(query):
        return re.findall(r'data-label="Time"><a [^>]+>([\d.]+)', page(PATH + query))

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
    shown = page("/history?kernel=gemm&shape=m%3D256,n%3D100,k%3D784")
    newest = shown.split("<tbody>")[1].split("<tr")[1]
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
    assert "retracted: wrong clocks" in page("/history?kernel=gemm&shape=m%3D256,n%3D100,k%3D784")


def test_history_of_nothing_leads_on(page, commit):
    with transaction():
        commit(lambda rows: rows.device())
    shown = page("/history?kernel=gemm&shape=m%3D1,n%3D2,k%3D3")
    assert "tilewright tune gemm --shape m=1,n=2,k=3 --device-model nvidia-h200" in shown
    assert 'role="alert"' in page("/history?kernel=gemm&shape=m%3D0,n%3D2,k%3D3", 422)
