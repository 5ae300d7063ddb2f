"""Two sides compared."""

import json
import re
from datetime import UTC, datetime

import pytest
from factories import H100, H200, NEW, OLD, SHAPE
from sqlalchemy import select

from tilewright.service.dashboard.charts.small import DotPlot
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages import compare as compare_page
from tilewright.service.operations.staleness.comparisons import TimeInterval, compare
from tilewright.service.store import models

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
