"""The page of a family's table in Chromium: drawn, with its marks, for everybody and on any window."""

import os

import pytest
from accessible import serious
from factories import TILED_16, TILED_32
from sampling import EXHAUSTIVE

from tilewright.kernels.space import Configuration

pytestmark = pytest.mark.browser

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
