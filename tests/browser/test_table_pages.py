"""Pages of tables, of results and of a family: for everybody, on any window, and light."""

from __future__ import annotations

import os

import pytest
from accessible import serious
from factories import TILED_16, TILED_32
from sampling import EXHAUSTIVE, sampled
from waiting import until

from tilewright.kernels.space import Configuration

pytestmark = pytest.mark.browser

MOST_BYTES = 1_000_000
"""Of a page with everything that it loads, as it crosses the network."""

WEIGHT = """
performance.getEntriesByType("resource").reduce((sum, entry) => sum + entry.transferSize, 0)
    + performance.getEntriesByType("navigation")[0].transferSize
"""
LOADED_FILES = """
performance.getEntriesByType("resource")
    .filter(({ name, transferSize }) => name.includes("/static/") && transferSize > 0).map(({ name }) => name)
"""
COMPARED = "/compare?kernel=gemm&a=nvidia-h200&a_at=2026-11-21T18%3A59&b=nvidia-h200"
HISTORY = "/kernels/gemm/problem?shape=m%3D4096,n%3D4096,k%3D4096"
ASKED = "/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D3900,n%3D4000,k%3D64"
PAGES = (COMPARED + "&show=all", "/jobs?sort=-gain")
"""The others are in test_views, too, in one scheme each."""

LIKE_THEM = (
    HISTORY,
    ASKED,
    "/results?select=TILE_M",
    "/attention?sort=problem",
    *(COMPARED, "/jobs?search=nothing", "/nowhere", "/results?sort=time", "/kernels", "/fleet"),
)


@pytest.mark.parametrize("path", sampled([*PAGES, *LIKE_THEM], PAGES.__contains__))
def test_tables_are_accessible_in_both_schemes_and_fit_the_window(visit, path, expect):
    tab = visit("/kernels")
    tab.expected |= {404, 422}
    tab.goto(path)
    assert serious(tab) == []
    tab.emulate_media(color_scheme="dark")
    assert serious(tab) == []
    for width in (390, 1024, 1440):
        tab.set_viewport_size({"width": width, "height": 900})
        expect(tab.locator("html")).to_have_js_property("scrollWidth", width)


def test_no_page_is_heavy(visit, site):
    heaviest = ("/", "/results", f"/studies/{site.imported}", HISTORY)
    for path in heaviest:
        tab = visit(path)  # each with nothing kept from before
        assert tab.evaluate(WEIGHT) < MOST_BYTES, path


def test_a_later_page_loads_no_static_file_again(visit):
    tab = visit(HISTORY)
    assert len(tab.evaluate(LOADED_FILES)) > 2

    def loaded():
        tab.goto(f"{HISTORY}&sort=time")
        return tab.evaluate(LOADED_FILES)

    # Not always the very next: the icon may come after its page, and a browser that is short of memory drops a file.
    until(lambda: not loaded(), loaded)


WPT = Configuration.of("tiled", {"TILE_WIDTH": 8})
TIMES = {
    WPT: {1: 0.010, 16: 0.012, 128: 0.050, 1024: 0.360, 8192: 3.1},
    TILED_16: {1: 0.013, 16: 0.0125, 128: 0.030, 1024: 0.210, 8192: 1.7},
    TILED_32: {1: 0.019, 16: 0.018, 128: 0.031, 1024: 0.150, 8192: 1.1},
}
SPANS = [(1, 40, WPT), (41, 200, TILED_16), (201, 8192, TILED_32)]
LIBRARY = {1: 0.011, 16: 0.013, 128: 0.033, 1024: 0.140, 8192: 1.2}


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=EXHAUSTIVE), "dark"])
def test_a_table_is_drawn(open_tab, commit, expect, scheme):
    shape = {"m": "1..8192", "n": 4096, "k": 4096}
    table_id = commit(lambda rows: rows.table(shape, SPANS, TIMES, library_ms=LIBRARY))
    tab = open_tab(f"/tables/{table_id}", color_scheme=scheme)
    expect(tab.locator("#over-sizes canvas")).to_be_visible()
    expect(tab.locator("#ranges + div tbody tr")).to_have_count(3)
    assert serious(tab) == []
    for width in (390, 1024, 1440):
        tab.set_viewport_size({"width": width, "height": 1400})
        expect(tab.locator("html")).to_have_js_property("scrollWidth", width)
    if folder := os.environ.get("TILEWRIGHT_SHOTS"):
        tab.screenshot(path=f"{folder}/table-{scheme}.png")
    tab.goto("/kernels/gemm")
    tab.get_by_role("link", name="m=1..8192").click()
    expect(tab.locator("h1")).to_contain_text("m=1..8192")
