"""The first page: what people see, also when there is nothing to see."""

import re
from pathlib import Path

import pytest
from factories import H100, H200, SHAPE, Rows

from tilewright.service.dashboard import STATIC, views
from tilewright.service.dashboard.views import TIMES
from tilewright.service.operations import registry
from tilewright.service.operations.transaction import transaction
from tilewright.service.store.models import JobState


def page(client):
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    return response.text


def commit(make):
    with transaction() as session:
        return make(Rows(session))


def test_empty_page_says_what_to_do_next(client):
    text = page(client)
    assert "tilewright worker" in text
    assert "tilewright tune" in text
    commit(lambda rows: rows.device())
    assert "Nothing tuned here yet" in page(client)


def test_best_configuration_is_shown_with_its_ratios(client):
    commit(lambda rows: rows.best(time_ms=0.5, library_ms=0.75))
    text = page(client)
    assert "gemm m=256,n=100,k=784 float32" in text
    for shown in ("TILE_WIDTH=16", "0.5000", "200", f"{TIMES}2.00", f"{TIMES}5.00", f"{TIMES}1.50", "NVIDIA H200"):
        assert shown in text


def test_page_says_when_the_library_should_be_used(client):
    commit(lambda rows: rows.best(time_ms=1.0, library_ms=0.5))
    assert "use cuBLAS 13.0" in page(client)


def test_curl_line_works_as_it_is(client):
    commit(lambda rows: rows.best(options={"trans_b": True}))
    line = re.search(r"curl &#39;http://127.0.0.1:8000(.*?)&#39;", page(client))[1].replace("&amp;", "&")
    assert client.get(line).json()["match"] == "exact"


def test_jobs_are_shown_and_refresh_the_page_only_while_open(client):
    commit(lambda rows: rows.best())
    assert "http-equiv" not in page(client)

    def running(rows):
        study, problem, device = rows.study(SHAPE | {"m": 7})
        rows.job(problem, device, study, JobState.RUNNING, 4)

    commit(running)
    text = page(client)
    assert '<meta http-equiv="refresh"' in text
    assert '<progress value="4" max="10">' in text


def test_models_with_a_living_worker_come_first(rows):
    rows.device(H100)
    rows.device(H200)
    models, devices = registry.device_models(rows.session), registry.devices(rows.session)
    dead = [device.model_copy(update={"alive": device.model != "nvidia-h100"}) for device in devices]
    assert [section.model.slug for section in views.sections(models, dead, [])] == ["nvidia-h200", "nvidia-h100"]


def test_text_from_outside_is_escaped(client):
    def failed(rows):
        study, problem, device = rows.study()
        rows.job(problem, device, study, JobState.FAILED).error = "<script>alert(1)</script>"

    commit(failed)
    assert "<script>" not in page(client)


def test_page_keeps_its_own_content_policy(client):
    text = page(client)
    assert " style=" not in text
    assert "<style" not in text
    assert "<script" not in text
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert client.get("/static/style.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize("path", ["/static/../pages.py", "/static/%2e%2e/pages.py", "/static/nothing.css"])
def test_only_static_files_are_served(client, path):
    assert client.get(path).status_code == 404


def test_templates_and_styles_name_no_other_host():
    for file in [*Path(STATIC).iterdir(), *(Path(STATIC).parent / "templates").iterdir()]:
        assert "://" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "\N{EN DASH}"), (0.01234, "0.0123"), (1.5, "1.50"), (51.1, "51.1"), (51100, "51,100")]
)
def test_numbers_are_short(value, shown):
    assert views.FILTERS["number"](value) == shown
