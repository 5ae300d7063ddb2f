"""The top of the first page: kernels in a line, what to do next, filters, the search, counts."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from factories import CPU, H100, H200, NEW, OLD, SHAPE
from shown_matrix import SQUARE, cells, shape
from test_matrix_page import add_demand
from waiting import until

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.best_cache import current_answers
from tilewright.service.store.models import JobState


def top(shown: str) -> str:
    """The page above the matrix, without line breaks inside numbers."""
    return shown.split('id="home"')[1].split("<h2>", maxsplit=1)[0].replace("\N{NO-BREAK SPACE}", " ")


def test_every_kernel_has_a_line_with_its_gain_and_what_needs_somebody(page, commit):
    def make(rows):
        rows.best(SQUARE, 1.0, library_ms=2.0)  # twice as fast as the default too
        rows.best(SQUARE, 1.0, library_ms=0.5, model=H100)
        rows.best(SHAPE, 1.0, environment=OLD)
        rows.best(SHAPE, 2.0, environment=NEW)
        add_demand(rows, SHAPE | {"m": 3}, 4)

    commit(make)
    shown = top(page())
    assert f"<b>3 results</b>, <b>{TIMES}1.00</b> as fast as the library, <b>{TIMES}2.00</b>" in shown
    (line,) = re.findall(r'<th scope="row"><a href="/\?kernel=gemm#best">gemm</a>.*?</tr>', shown, re.DOTALL)
    words = re.sub(r"<[^>]+>", " ", line).split()
    assert words[:4] == ["gemm", "3", f"{TIMES}1.00", f"{TIMES}2.00"]
    steps = re.findall(r'<li><a href="([^"]+)">([^<]+)</a>', shown)
    assert steps == [
        ("/attention?kind=regressed", "1 result slower than before: see since when"),
        ("/demand", "1 requested problem not tuned: tune the most requested"),
        ("/attention?kind=behind", "1 result behind the library: tune longer"),
        ("/ask?kernel=gemm", "Look up a shape: tune it, or use it in your program"),
    ]


def test_results_of_a_cpu_lead_with_the_gain_over_the_default_and_are_called_a_stand_in(page, commit):
    commit(lambda rows: rows.best(SQUARE, 1.0, model=CPU, library_ms=0.3))
    shown = page()
    assert "as fast as the library" not in top(shown)
    assert ' bad"' not in shown
    assert '<details id="more-filters"><summary>' in shown  # the usual colour of a CPU opens nothing
    assert "stands in for a GPU" in top(shown)
    assert f"{TIMES}2.00</b> as fast as the default configuration" in top(shown)
    assert f"{TIMES}2.00" in cells(shown, shape(512, 512, 512))[0]


def test_a_cpu_beside_gpus_shows_its_gain_over_the_default_in_the_matrix(page, commit):
    commit(lambda rows: [rows.best(SQUARE, 1.0, library_ms=0.8), rows.best(SQUARE, 40.0, library_ms=10.0, model=CPU)])
    shown = page()
    assert f"{TIMES}2.00 default" in cells(shown, shape(512, 512, 512))[1]
    strip = shown.partition('aria-label="Device models"')[2].partition("</table>")[0]
    assert strip.count(' bad"') == 1  # of two that are behind, the GPU's alone is red


def test_a_study_of_a_cpu_leads_with_the_gain_over_the_default(page, commit):
    studies = commit(
        lambda rows: [rows.trial_of(rows.best(SQUARE, library_ms=0.8, model=m)).study_id for m in (CPU, H200)]
    )
    orders = [re.findall(r"<dt>(Over the \w+)</dt>", page(f"/studies/{study}")) for study in studies]
    assert orders == [["Over the default", "Over the library"], ["Over the library", "Over the default"]]


def test_a_filter_leaves_the_first_screen_out(page, commit):
    commit(lambda rows: rows.best(SQUARE))
    assert 'id="home"' not in page("/?device_model=nvidia-h200")


def test_what_all_results_of_a_model_share_is_said_once(page, commit):
    def make(rows):
        for m in (64, 128):
            rows.best(SQUARE | {"m": m}, environment=OLD)
        rows.best(SQUARE, model=H100)
        rows.device(H200, NEW)

    commit(make)
    shown = page("/?kernel=gemm")
    assert shown.count("All results of NVIDIA H200 here are stale") == 1
    assert "\N{CLOCKWISE OPEN CIRCLE ARROW}<span" not in shown.partition('<table class="matrix">')[2]


def test_what_was_looked_up_for_a_cell_is_not_looked_up_again(page, filled, computing, monkeypatch):
    """Until something changes: two hundred rows of cells took most of a second each time."""
    calls = []
    look_up = current_answers._looked_up
    monkeypatch.setattr(current_answers, "_looked_up", lambda *of, **more: calls.append(of) or look_up(*of, **more))

    def looked_up_by_a_page():
        calls.clear()
        first = page("/?kernel=gemm")
        return len(calls), first

    until(lambda: looked_up_by_a_page()[0] == 0)
    assert "→ nearest" in cells(looked_up_by_a_page()[1], shape(1023, 1025, 1027))[0]


@pytest.mark.parametrize(
    ("query", "there", "gone"),
    [
        ("family=Llama-3-8B", shape(16, 6144, 4096), shape(512, 512, 512)),
        ("family=square", shape(512, 512, 512), shape(16, 6144, 4096)),
        ("family=odd+sizes", shape(1023, 1025, 1027), shape(512, 512, 512)),
        ("shape=k%3D4096", shape(16, 6144, 4096), shape(512, 512, 512)),
        ("options=trans_b%3Dtrue", shape(16, 6144, 4096), shape(512, 512, 512)),
        ("kernel=gemm&dtype=float64", "No result of gemm matches the filter", shape(512, 512, 512)),
    ],
)
def test_filters_stand_in_the_address(page, filled, query, there, gone):
    shown = page(f"/?{query}").split('id="jobs"')[0]
    assert there in shown
    assert gone not in shown


def test_one_device_model_can_be_chosen(page, filled):
    shown = page("/?device_model=nvidia-h100")
    assert len(cells(shown, shape(512, 512, 512))) == 1
    assert "There is no device model" in page("/?device_model=nothing")


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("512x512x512", 1),
        ("512 \N{MULTIPLICATION SIGN} 512*512", 1),
        ("512", 1),
        ("4096", 1),
        ("m=16,k=4096", 1),
        ("777", 0),
    ],
)
def test_sizes_may_be_written_as_people_write_them(page, filled, written, rows):
    shown = page(f"/?{urlencode({'kernel': 'gemm', 'shape': written})}").split('id="jobs"')[0]
    assert shown.count('<th scope="row"><a href="/kernels/gemm/problem') == rows
    assert f'value="{written}"' in shown


@pytest.mark.parametrize(
    ("query", "field", "reason"),
    [
        ("shape=4096x4096", "shape", "has 2 sizes; write one for each of m, n, k, or a single one"),
        ("shape=m%3Dx", "shape", "is not a whole number"),
        ("options=nonsense", "options", "is not of the form name=value"),
        ("q=nothing-here", "q", "was not found. Search for kernels"),
    ],
)
def test_a_filter_that_cannot_be_read_keeps_the_form(page, filled, query, field, reason):
    shown = page(f"/?{query}&family=square", status=422)
    assert reason in html.unescape(shown)
    assert re.search(rf'name="{field}"[^>]*aria-invalid="true" aria-describedby="refusal"', shown)
    assert "<option selected>square</option>" in shown


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("h100", {"device_model": "nvidia-h100"}),
        ("512x512x512 H200", {"shape": "512x512x512", "device_model": "nvidia-h200"}),
        ("soft 64x10", {"kernel": "softmax", "shape": "64x10"}),
        ("m=16 k=4096 trans_b=true", {"shape": "m=16,k=4096", "options": "trans_b=true"}),
        ("float64", {"dtype": "float64"}),
    ],
)
def test_the_search_knows_kernels_models_types_options_and_shapes(client, filled, text, meant):
    answer = client.get(f"/?{urlencode({'q': text, 'kernel': 'gemm'})}", follow_redirects=False)
    assert answer.status_code == 303
    found = {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
    assert found == {"kernel": "gemm"} | meant


def strip_of(page: str) -> dict[str, list[str]]:
    """The figures of each device model, without their tags."""
    table = page.partition('<table class="strip">')[2].partition("</table>")[0]
    lines = [re.sub(r'<span class="hidden">.*?</span>|<[^>]+>', " ", row).split() for row in table.split("<tr")[2:]]
    return {" ".join(line[1:3]): line[3:] for line in lines}


def test_the_strip_counts_and_each_count_leads_to_its_rows(page, commit):
    def make(rows):
        rows.best(SQUARE, 0.5, library_ms=1.0)  # ahead
        rows.best(SQUARE | {"m": 1024}, 1.0, library_ms=0.5)  # behind
        rows.best(SQUARE | {"m": 2048}, 1.0, library_ms=1.005)  # level
        rows.best(SQUARE | {"m": 4096}, 0.5, environment=OLD)
        rows.best(SQUARE | {"m": 4096}, 0.9, environment=NEW)  # regressed, and no library
        rows.best(SQUARE | {"m": 8192}, 1.0, source="// before", library_ms=2.0)  # stale and ahead
        study, problem, device = rows.study({"m": 64, "n": 100, "k": 100})
        rows.job(problem, device, study, JobState.FAILED)
        rows.best(SQUARE, 1.0, model=H100)
        rows.device(H200)

    commit(make)
    shown = page()
    assert strip_of(shown) == {
        "NVIDIA H100": ["1", f"{TIMES}2.00", "of", "the", "default", "0", "0", "0", "0", "0", "0"],
        "NVIDIA H200": ["5", f"{TIMES}1.19", "2", "1", "1", "1", "1", "1"],
    }
    rows = {
        "ahead": {"512", "8192"},
        "level": {"2048"},
        "behind": {"1024"},
        "stale": {"8192"},
        "regressed": {"4096"},
        "failed": {"64"},
    }
    for status, expected in rows.items():
        link = re.search(rf'href="([^"]*status={status})"', shown)
        part = page(html.unescape(link[1])).partition('<table class="matrix">')[2]
        assert set(re.findall(rf">(\d+) {TIMES}", part)) == expected, status
