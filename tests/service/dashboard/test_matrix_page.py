"""The first page: problems by device models, filtered by its address."""

import pytest
from factories import CPU, H100, NEW, OLD, SHAPE

from tilewright.service.dashboard import matrix_view
from tilewright.service.dashboard.words import TIMES
from tilewright.service.store.models import JobState

LLAMA = {"m": 16, "n": 6144, "k": 4096}
SQUARE = {"m": 512, "n": 512, "k": 512}


@pytest.fixture
def filled(commit):
    """Three families on two GPUs and a CPU, a problem that only failed, and one that has two environments."""

    def make(rows):
        rows.best(SQUARE, 0.6, environment=OLD)
        rows.best(SQUARE, 0.5, library_ms=0.75)
        rows.best(SQUARE, 0.9, model=H100, environment=NEW)
        rows.best(LLAMA, 2.0, library_ms=1.0, options={"trans_b": True})
        rows.best({"m": 1023, "n": 1025, "k": 1027}, 1.0, model=CPU)
        study, problem, device = rows.study({"m": 64, "n": 100, "k": 100})
        rows.job(problem, device, study, JobState.FAILED).error = "the worker died"

    commit(make)


def cells(page: str, row: str) -> list[str]:
    """The cells of the row whose shape is named."""
    line = next(part for part in page.split("<tr>") if row in part)
    return line.split('<td class="cell ')[1:]


def test_empty_matrix_says_what_to_do_next(page, commit):
    assert "tilewright up" in page()
    commit(lambda rows: rows.device())
    assert "tilewright tune gemm" in page()


def test_a_cell_says_its_ratio_in_words_and_signs_too(page, filled):
    ahead = cells(page(), "m=512, n=512, k=512")[1]
    assert ahead.startswith("ahead-2")
    assert f"{matrix_view.sign('ahead-2')} {TIMES}1.50" in ahead
    behind = cells(page(), "m=16, n=6144")[1]
    assert behind.startswith("behind-3")
    assert f"{matrix_view.sign('behind-3')} {TIMES}0.50" in behind
    assert "cuBLAS 1.00, faster" in behind


def test_several_environments_are_said_and_the_newest_is_shown(page, filled):
    cell = cells(page(), "m=512, n=512, k=512")[1]
    assert "2 environments" in cell


def test_no_cell_is_blank(page, filled):
    shown = page()
    assert "\N{BALLOT X} failed" in cells(shown, "m=64, n=100")[1]
    assert "the worker died" in cells(shown, "m=64, n=100")[1]
    open_cells = cells(shown, "m=1023, n=1025")
    assert open_cells[2].startswith("unrated")
    assert "uses a near shape" in open_cells[0]
    assert "uses the default" in cells(shown, "m=16, n=6144")[2]


@pytest.mark.parametrize(
    ("query", "there", "gone"),
    [
        ("family=Llama-3-8B", "m=16, n=6144", "m=512"),
        ("family=square", "m=512, n=512", "m=16"),
        ("family=odd+sizes", "m=1023, n=1025", "m=512"),
        ("shape=k%3D4096", "m=16, n=6144", "m=512"),
        ("options=trans_b%3Dtrue", "m=16, n=6144", "m=512"),
        ("kernel=gemm&dtype=float64", "No result of gemm matches the filter", "m=512"),
    ],
)
def test_filters_stand_in_the_address(page, filled, query, there, gone):
    shown = page(f"/?{query}").split('id="jobs"')[0]
    assert there in shown
    assert gone not in shown


def test_one_device_model_can_be_chosen(page, filled):
    shown = page("/?device_model=nvidia-h100")
    assert len(cells(shown, "m=512, n=512")) == 1
    assert "There is no device model" in page("/?device_model=nothing")


def test_pages_of_shapes_do_not_overlap(page, commit):
    commit(lambda rows: [rows.best(SHAPE | {"m": 100 + place}) for place in range(45)])
    first = page("/")
    older = first.split('" rel="next"')[0].rpartition('href="')[2].replace("&amp;", "&")
    second = page(older)
    seen = [{m for m in range(100, 145) if f"m={m}, n" in text} for text in (first, second)]
    assert seen[0] | seen[1] == set(range(100, 145))
    assert not seen[0] & seen[1]


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
    assert "the source has changed" in cells(page(), "m=512, n=512, k=512")[0]
