"""The first page: problems by device models, and what a cell says."""

import html
import math
import random
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cpu_time import cost_s
from factories import CPU, H100, H200, NEW, OLD, SHAPE, T4, TILED_16
from shipped_file import WORDS
from shown_matrix import LLAMA, SQUARE, cells, shape
from sqlalchemy import text
from test_result_pages import MANY_RESULTS
from waiting import until

from tilewright.kernels.space import Configuration
from tilewright.service.dashboard import STATIC, matrix_view
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages import overview
from tilewright.service.operations.answers import ProblemAnswer
from tilewright.service.operations.best.find import find_best
from tilewright.service.operations.demand import demand
from tilewright.service.operations.demand.demand import RequestedProblem
from tilewright.service.operations.transaction import transaction
from tilewright.service.operations.views import matrix
from tilewright.service.store import models


def test_empty_matrix_says_what_to_do_next(page, commit):
    assert "tilewright up" in page()
    commit(lambda rows: rows.device())
    assert "tilewright tune gemm" in page()


@pytest.mark.parametrize(
    ("devices", "asked", "colour"),
    [
        ([CPU], "", "default"),
        ([H200], "", "library"),
        ([CPU, H200], "", "library"),
        ([CPU], "&colour=library", "library"),
        ([CPU], "&colour=roof", "roof"),
        ([H200], "&colour=default", "default"),
    ],
)
def test_cells_have_the_colour_of_the_library_or_of_the_default_where_only_cpus_are(
    page, commit, devices, asked, colour
):
    commit(lambda rows: [rows.best(model=model) for model in devices])
    assert (
        re.search(r'<select name="colour">.*?<option value="([a-z]+)" selected', page(f"/?kernel=gemm{asked}"))[1]
        == colour
    )


def test_a_cell_says_its_ratio_in_words_and_signs_too(page, filled):
    ahead = cells(page(), shape(512, 512, 512))[1]
    assert ahead.startswith("ahead-2")
    assert f"{matrix_view.sign('ahead-2')} {TIMES}1.50" in ahead
    behind = cells(page(), shape(16, 6144, 4096))[1]
    assert behind.startswith("behind-3")
    assert f"{matrix_view.sign('behind-3')} {TIMES}0.50" in behind
    assert "cuBLAS 13.0 1.00\N{NO-BREAK SPACE}ms, " in behind


@pytest.mark.parametrize(
    ("library_ms", "said", "mark"),
    [
        (0.988, "behind-1", "behind-1"),
        (1.005, "level", "level"),
        (1.02, "ahead-1", "ahead-1"),
        (3.0, "ahead-3", "ahead-3"),
    ],
)
def test_a_cell_is_level_only_where_the_finals_could_not_tell(page, commit, library_ms, said, mark):
    """At x0.99 the library may be faster beyond the noise: then the cell must not say that both are level."""
    commit(lambda rows: rows.best(SQUARE, 1.0, library_ms=library_ms))
    (cell,) = cells(page(), shape(512, 512, 512))
    assert cell.startswith(said)
    assert f"{matrix_view.sign(mark)} {TIMES}{library_ms:.2f}" in cell


def test_several_environments_are_said_and_the_newest_is_shown(page, filled):
    cell = cells(page(), shape(512, 512, 512))[1]
    assert "the newest of 2 environments" in cell


def test_no_cell_is_blank(page, filled):
    shown = page()
    assert "\N{BALLOT X} failed" in cells(shown, shape(64, 100, 100))[1]
    assert "the worker died" in cells(shown, shape(64, 100, 100))[1]
    open_cells = cells(shown, shape(1023, 1025, 1027))
    assert open_cells[2].startswith("unrated")
    assert "→ nearest" in open_cells[0]
    assert "○ default" in cells(shown, shape(16, 6144, 4096))[2]


def test_batches_and_views_are_a_family_with_their_axes(page, commit):
    view = {**SQUARE, "batch": 32, "lda": 600, "stride_b": 0}
    commit(lambda rows: [rows.best(SQUARE), rows.best(view, library_ms=1.5), rows.best(SQUARE | {"batch": 8})])
    shown = page("/?family=batches+and+views")
    assert f"512 {TIMES} 512 {TIMES} 512, batch=32, lda=600, stride_b=0" in shown
    assert f"512 {TIMES} 512 {TIMES} 512, batch=8" in shown
    assert "batch=" not in page("/?family=square").split('id="jobs"')[0]
    assert "batch=32" in page("/?shape=batch%3D32")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("order", ["size", "ratio", "age", "demand"])
def test_the_order_holds_across_pages_and_none_is_shown_twice(page, commit, monkeypatch, order):
    monkeypatch.setattr(overview, "SHOWN", 20)
    sizes = random.Random(1).sample(range(100, 145), 45)

    def make(rows):
        for place, m in enumerate(sizes):
            ratio = None if m == 100 else 1 + (m * 7 % 45) / 100  # one without a library comes last
            best = rows.best(SHAPE | {"m": m}, 1.0, library_ms=ratio)
            best.verified_at = datetime(2026, 11, 1 + place % 20, place, tzinfo=UTC) if place < 24 else best.verified_at
            if m % 3:
                add_demand(rows, SHAPE | {"m": m}, m * 11 % 45 + 1)

    commit(make)
    path, seen = f"/?order={order}", []
    while path:
        shown = page(path)
        assert "45 shapes" in shown
        seen += [int(m) for m in re.findall(rf">(\d+) {TIMES} 100 {TIMES} 784</a>", shown)]
        before, is_more, _ = shown.partition('" rel="next"')
        path = html.unescape(before.rpartition('href="')[2]) if is_more else None
    keys = {
        "size": lambda m: m,
        "ratio": lambda m: math.inf if m == 100 else m * 7 % 45,
        "age": lambda m: 0,
        "demand": lambda m: -(m * 11 % 45 + 1) if m % 3 else 0,
    }
    assert sorted(seen) == list(range(100, 145))
    assert [keys[order](m) for m in seen] == sorted(keys[order](m) for m in seen)
    if order == "age":
        assert set(seen[-24:]) == set(sizes[:24])


def test_data_links_answer_the_same_rows(client, page, filled):
    shown = page("/?family=square")
    link = shown.split('<span class="data">Data: <a href="')[1].split('"')[0].replace("&amp;", "&")
    answer = client.get(link).json()
    assert [item["family"] for item in answer["items"]] == ["square"]
    assert {cell["device_model"]: cell["match"] for cell in answer["items"][0]["cells"]} == {
        "cpu:test": "nearest",
        "nvidia-h100": "exact",
        "nvidia-h200": "exact",
    }
    text = client.get(link + "&format=csv").text.splitlines()
    assert "cells.nvidia-h200.result.time_ms" in text[0].split(",")
    assert len(text) == 2


@pytest.mark.parametrize(
    ("ratio", "name"),
    [
        (None, "unrated"),
        (1.0, "level"),
        (1.03, "level"),
        (1.05, "ahead-1"),
        (1.3, "ahead-2"),
        (2.5, "ahead-3"),
        (0.99, "level"),
        (0.93, "behind-1"),
        (0.7, "behind-2"),
        (0.3, "behind-3"),
    ],
)
def test_shades_are_logarithmic(ratio, name):
    assert matrix_view.shade(ratio) == name


def test_a_share_of_the_roof_has_a_shade():
    assert [matrix_view.roof_shade(share) for share in (None, 0.05, 0.5, 0.9)] == [
        "unrated",
        "behind-3",
        "ahead-1",
        "ahead-3",
    ]


def test_a_result_that_the_kernel_no_longer_admits_does_not_count_as_exact(page, commit):
    def make(rows):
        best = rows.best(SQUARE)
        rows.trial_of(best).configuration = {"variant": "tiled", "TILE_WIDTH": 77}

    commit(make)
    assert "the source has changed; answered now: the kernel&#39;s default" in cells(page(), shape(512, 512, 512))[0]


def add_demand(rows, sizes, times):
    """Counts questions, as the API does."""
    options = {option.name: option.default for option in demand.catalogue().get("gemm").options}
    problem = ProblemAnswer(kernel="gemm", shape=sizes, dtype="float32", options=options)
    demand.count(rows.session, {RequestedProblem.of(problem, "nvidia-h200"): times})


def best_on(models: list[str], rows: list[dict]) -> dict[tuple[int, str], str]:
    """What `best` answers for each row and device model."""
    return {
        (place, model): find_best(
            "gemm", model, row["problem"]["shape"], row["problem"]["dtype"], row["problem"]["options"]
        ).match.value
        for place, row in enumerate(rows)
        for model in models
    }


@pytest.mark.in_turn(2)
@pytest.mark.usefixtures("computing")
def test_every_cell_says_what_best_answers(client, page, commit):
    """Near and far shapes, other options, a fitted predictor, a configuration that fell out of its space."""

    def make(rows):
        for m in (256, 320, 384, 448):
            best = rows.best(SHAPE | {"m": m}, m / 256, library_ms=m / 200)
            study = rows.session.get_one(models.Study, rows.trial_of(best).study_id)
            job = rows.session.get_one(models.TuningJob, best.job_id)
            for width in (8, 32):
                rows.trial(study, job, Configuration.of("tiled", {"TILE_WIDTH": width}), m / 256 * 1.2)
            for x, y in ((8, 8), (16, 8), (32, 8), (32, 4), (64, 4), (64, 2), (128, 1), (128, 2)):
                rows.trial(study, job, Configuration.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}), m / 100)
        rows.best(SHAPE | {"m": 300}, 1.0, model=H100)
        rows.best({"m": 64000, "n": 64, "k": 64}, 1.0)
        rows.best(LLAMA, 2.0, options={"trans_b": True}, model=CPU)
        fallen = rows.best(SHAPE | {"m": 700})
        rows.trial_of(fallen).configuration = {"variant": "tiled", "TILE_WIDTH": 77}
        rows.best(SHAPE | {"m": 512}, 0.4, environment=OLD)  # stale, and faster: `best` prefers the fresh one
        rows.best(SHAPE | {"m": 512}, 0.5, configuration=TILED_16, environment=NEW)
        rows.model_alone(T4)

    commit(make)
    assert "being computed" in page("/?order=age")
    until(lambda: "being computed" not in page("/?order=age"))
    until(lambda: '"pending":true' not in client.get("/v1/kernels/gemm/matrix?limit=200").text)
    rows = client.get("/v1/kernels/gemm/matrix?limit=200").json()["items"]
    said = {(i, cell["device_model"]): cell["match"] for i, row in enumerate(rows) for cell in row["cells"]}
    assert said == best_on(["cpu:test", "nvidia-h100", "nvidia-h200", "nvidia-t4"], rows)
    assert set(said.values()) >= {"exact", "predicted", "nearest", "transferred", "default"}
    shown = page("/?order=age")
    for row in rows:
        text = cells(shown, shape(*(row["problem"]["shape"][axis] for axis in "mnk")))
        own = {cell["device_model"]: cell for cell in row["cells"]}
        for cell, model in zip(text, ("nvidia-h100", "nvidia-h200", "cpu:test"), strict=True):
            if own[model]["result"] is None:
                assert f" {own[model]['match']}</a>" in cell
    (fresh,) = [row for row in rows if row["problem"]["shape"]["m"] == 512]
    assert next(cell["result"]["time_ms"] for cell in fresh["cells"] if cell["device_model"] == "nvidia-h200") == 0.5


def test_models_without_results_are_folded(page, commit):
    commit(lambda rows: (rows.best(SQUARE), rows.device(H100), rows.model_alone(T4)))
    shown = page()
    assert "<summary>2 device models without results of gemm</summary>" in shown
    head = shown.partition('<table class="matrix">')[2].partition("</thead>")[0]
    assert "NVIDIA H200" in head
    assert "NVIDIA H100" not in head


@pytest.fixture
def full(commit):
    """Two hundred shapes on ten device models."""
    ten = [replace(H200, slug=f"nvidia-m{i}", name=f"NVIDIA Model {i}") for i in range(10)]
    commit(lambda rows: [rows.best(library_ms=1.1, model=model) for model in ten])
    with transaction() as session:
        session.execute(text(MANY_RESULTS), {"count": 199})


@pytest.mark.usefixtures("full")
def test_two_hundred_shapes_by_ten_models_are_light(page):
    shown = page()
    assert shown.count('<td class="cell ahead-1') + shown.count('<td class="cell behind-1') > 500
    assert shown.count('<td class="cell') == overview.MOST_CELLS  # and a link to the rest
    assert len(shown) + (STATIC / "style.css").stat().st_size < 1_000_000


@pytest.mark.exhaustive
@pytest.mark.usefixtures("full")
def test_two_hundred_shapes_by_ten_models_are_quick(page):
    """The aim is 300 ms of server time; the bound is a third more, for busy machines and instrumented tests."""
    costs_s = []
    while not costs_s or (min(costs_s) >= 0.4 and len(costs_s) < 10):
        costs_s.append(cost_s(page))
    assert min(costs_s) < 0.4


def test_the_overview_of_an_empty_installation_is_of_gemm(page):
    assert "Best known configurations of gemm" in page("/")


def test_the_search_leads_to_a_job_by_its_id_or_the_beginning_of_it(client):
    job = "0190a5a4-0000-7000-8000-00000000000a"
    for written, path in (
        (job, f"/jobs/{job}"),
        (job[:8], f"/jobs?search={job[:8]}"),
        (job[:13], f"/jobs?search={job[:13]}"),
    ):
        answer = client.get(f"/?q={written}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, path)


@pytest.mark.in_turn(2)
@pytest.mark.usefixtures("shipped_records", "computing")
def test_a_cell_that_shipped_records_answer_says_so(page, commit):
    commit(lambda rows: [rows.best(SQUARE, model=H100), rows.best(LLAMA, options={"trans_b": True})])
    until(lambda: f"predicted from {WORDS}" in html.unescape(page()))


def test_of_many_device_models_the_most_tuned_have_columns(page, commit, monkeypatch):
    monkeypatch.setattr(matrix, "MOST_COLUMNS", 2)

    def make(rows):
        for model, count in ((H200, 3), (H100, 1), (T4, 2)):
            for place in range(count):
                rows.best(SHAPE | {"m": 64 + place}, model=model)

    commit(make)
    heads = re.findall(
        r"<th[^>]*>.*?</th>", page().partition('<table class="matrix">')[2].partition("</thead>")[0], re.DOTALL
    )
    assert [model.name for model in (H200, H100, T4) if any(model.name in head for head in heads)] == [
        H200.name,
        T4.name,
    ]
    assert "1 more is in the table above" in page()
    assert H100.name in page(f"/?device_model={H100.slug}").partition('<table class="matrix">')[2]
