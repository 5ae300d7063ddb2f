"""Two sides compared, and the history of a problem."""

import pytest
from factories import H100, H200, NEW, OLD, SHAPE, TILED_32
from sqlalchemy import select

from tilewright.service.dashboard.pages import compare as compare_page
from tilewright.service.dashboard.words import TIMES
from tilewright.service.operations.staleness.comparisons import TimeInterval, compare
from tilewright.service.operations.transaction import transaction
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


def test_environments_are_compared_over_what_both_have(page, two_environments):
    shown = page(path(*two_environments))
    assert f"{TIMES}1.17" in shown  # (2 x 1/1.01 x 0.8) ** (1/3)
    for part in ("1 better", "1 same", "1 worse", "1 missing in B", "3 problems"):
        assert part in shown.replace("</span> ", "")
    rows = shown.split("<tbody>")[1].split("<tr>")[1:]
    assert "m=400" in rows[-1] or "m=200" in rows[-1]
    assert "better" in next(row for row in rows if "m=100" in row)


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
    message = f"{side}_environment: nvidia-h200 has no results in the environment {foreign}."
    assert message in page(f"/compare?kernel=gemm&{query}", 422)
    refused = client.get(f"/v1/kernels/gemm/compare?{query}")
    assert refused.status_code == 422
    assert f"{side}_environment" in refused.text


def test_more_problems_than_are_shown_are_counted(client, page, commit, monkeypatch):
    commit(lambda rows: [rows.best(SHAPE | {"m": m}) for m in (1, 2, 3)])
    path = "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h200"
    assert "largest changes" not in page(path)
    monkeypatch.setattr(compare_page, "SHOWN_ROWS", 2)
    shown = page(path)
    assert "The 2 largest changes of 3 problems; the data links have 3." in shown
    link = shown.split('Data: <a href="')[1].split('"')[0].replace("&amp;", "&")
    assert len(client.get(link).json()["items"]) == 3


def test_the_data_have_as_many_rows_as_the_api_gives(client):
    path = "/v1/kernels/gemm/compare?a=x&b=y&limit="
    assert client.get(f"{path}{compare_page.MOST_ROWS}").status_code == 200
    assert client.get(f"{path}{compare_page.MOST_ROWS + 1}").status_code == 422


def test_history_says_what_changed_and_whether_it_is_faster(client, page, two_environments):
    shown = page("/history?kernel=gemm&shape=m%3D100,n%3D100,k%3D784")
    newest = shown.split("<tbody>")[1].split("<tr>")[1]
    assert "better" in newest
    assert f"{TIMES}2.00" in newest
    assert "driver, toolkit, compiler" in newest
    assert '"type":"time"' in shown
    found = client.get("/v1/kernels/gemm/history?shape=m%3D100,n%3D100,k%3D784").json()["items"]
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
    assert "This address is not right" in page("/history?kernel=gemm&shape=m%3D0,n%3D2,k%3D3", 422)
