"""The top of the first page: every kernel in a line, what was gained, and what to do next."""

import re

from factories import CPU, H100, H200, NEW, OLD, SHAPE
from shown_matrix import SQUARE, cells, shape
from test_matrix_page import add_demand
from waiting import until

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.best_cache import current_answers


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
