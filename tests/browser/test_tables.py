"""Tables, looking up, asking and refusals as a person with a browser meets them."""

import os
import re

import pytest
from accessible import serious
from factories import H100, H200, NEW, OLD, SHAPE, TILED_16, TILED_32
from sampling import EXHAUSTIVE, sampled
from waiting import until

from tilewright.kernels.space import Configuration
from tilewright.service.store.models import Trial, TuningJob

pytestmark = pytest.mark.browser

PHONE = 390


def test_a_heading_sorts_without_a_new_page_and_the_address_follows(open_tab, commit, expect):
    def jobs(rows):
        for m, gain in ((8, 1.5), (16, 4.0)):
            job = rows.session.get_one(TuningJob, rows.best({"m": m, "n": 8, "k": 8}).job_id)
            job.result = {"best": {"time_ms": 1.0}, "gain_over_default": gain}

    commit(jobs)
    tab = open_tab("/jobs")
    first = tab.locator("#jobs tbody tr").first
    for direction, shape in (("descending", "m=16"), ("ascending", "m=8")):
        tab.get_by_role("link", name="Gain").click()
        expect(tab.get_by_role("columnheader", name="Gain")).to_have_attribute("aria-sort", direction)
        expect(first).to_contain_text(shape)
    expect(tab).to_have_url(re.compile("sort=gain"))
    tab.get_by_role("searchbox", name="Search").fill("16x8x8")
    tab.get_by_role("button", name="Search").click()
    expect(tab.locator("#jobs tbody tr")).to_have_count(1)
    expect(first).to_contain_text("m=16")


def test_times_are_told_in_the_browsers_zone_beside_utc(open_tab, commit, expect):
    job_id = commit(lambda rows: str(rows.best().job_id))
    tab = open_tab(f"/jobs/{job_id}", timezone_id="Asia/Kolkata")  # whose older name Chromium says
    both = tab.locator("time[data-local]").first
    expect(both).to_contain_text(" UTC · ")
    expect(both).to_contain_text("Asia/Calcutta")
    expect(tab.locator("time[title]").first).to_have_attribute("title", re.compile(r"UTC · .* Asia/Calcutta$"))


def test_the_button_of_looking_up_requests_the_job_and_leads_to_it(open_tab, commit, expect):
    commit(lambda rows: [rows.best(), rows.device(H100)])
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h100&shape=m%3D300,n%3D100,k%3D784")
    tab.get_by_label("Trials").fill("7")
    tab.get_by_role("button", name="Tune", exact=True).click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("gemm m=300,n=100,k=784 float32")
    expect(tab.get_by_text("7 trials")).to_be_visible()
    expect(tab.get_by_role("link", name="nvidia-h100")).to_be_visible()


def test_a_refusal_of_the_button_is_said_beside_it(open_tab, commit, expect):
    commit(lambda rows: rows.best())
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.expected.add(422)
    tab.get_by_label("Trials").fill("0")
    tab.get_by_role("button", name="Tune", exact=True).click()
    expect(tab.get_by_label("Trials")).to_have_attribute("aria-invalid", "true")


def test_a_regression_is_red_in_the_table_and_on_its_history(open_tab, commit, expect):
    commit(lambda rows: [rows.best(SHAPE, 1.0, environment=OLD), rows.best(SHAPE, 1.5, environment=NEW)])
    tab = open_tab("/results")
    mark = tab.locator(".regressed")
    assert mark.evaluate("element => getComputedStyle(element).color") == "rgb(165, 32, 27)"
    mark.click()
    expect(tab.get_by_text("Regressed on nvidia-h200:")).to_be_visible()
    tab.locator("#history canvas").wait_for()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(("path", "status"), [("/nowhere", 404), ("/jobs/3", 422), ("/v1/jobs/3", 422)])
def test_a_browser_is_shown_a_page_where_something_is_wrong(open_tab, path, status):
    tab = open_tab("/jobs")
    tab.expected.add(status)
    answer = tab.goto(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert tab.get_by_role("navigation", name="Pages").is_visible()
    assert tab.get_by_role("heading", level=1).is_visible()


def test_on_a_phone_a_device_is_chosen_and_then_there_is_a_list(open_tab, commit, expect):
    commit(lambda rows: [rows.best(library_ms=2.0, model=model) for model in (H100, H200)])
    tab = open_tab("/?kernel=gemm", width=PHONE)
    expect(tab.locator(".matrix")).to_be_hidden()
    expect(tab.get_by_text("Choose a device model above")).to_be_visible()
    tab.locator(".strip").get_by_role("link", name="NVIDIA H200", exact=True).click()
    tab.wait_for_url(re.compile("device_model=nvidia-h200"))
    expect(tab.locator(".matrix")).to_be_visible()
    first = tab.locator(".matrix tbody tr").first
    shape, cell = first.locator("th").bounding_box(), first.locator("td").bounding_box()
    assert cell["y"] >= shape["y"] + shape["height"]
    assert cell["height"] < 32  # one line
    expect(tab.locator("html")).to_have_js_property("scrollWidth", PHONE)


def test_a_chart_and_the_table_behind_it_show_times_in_the_unit_that_suits_them(open_tab, commit, expect):
    study_id = commit(lambda rows: rows.session.get_one(Trial, rows.best(time_ms=0.05).trial_id).study_id)
    tab = open_tab(f"/studies/{study_id}")
    tab.get_by_role("group", name="Best so far, over trials").get_by_role("button", name="Table").click()
    table = tab.get_by_role("region", name="Best so far, over trials")
    expect(table.locator("thead")).to_contain_text("time, µs, lower is better")
    expect(table.locator("tbody tr").first.locator("td").last).to_have_text("50")


def test_an_answer_says_how_it_was_found_and_its_programs_are_copied(open_tab, commit, expect):
    commit(lambda rows: rows.best(configuration=TILED_32))
    tab = open_tab("/ask", permissions=["clipboard-read", "clipboard-write"])
    tab.get_by_label("Shape").fill("m=256,n=100,k=784")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.locator(".match")).to_contain_text("Exact")
    expect(tab.locator("pre.source")).to_contain_text("#define TILE_WIDTH 32")
    for kind, begins in (("curl", "curl '"), ("client.best", "from tilewright"), ("mem_alloc", "import numpy")):
        box = tab.locator(".copyable", has_text=kind).first
        if kind == "mem_alloc":
            tab.get_by_text("PyCUDA without the launcher").click()
        box.get_by_role("button").click()
        expect(box.get_by_role("button")).to_have_text("Copied")
        copied = tab.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(begins)
        if kind == "curl":
            assert tab.request.get(copied.split("'")[1]).json()["match"] == "exact"
        else:
            compile(copied, kind, "exec")


def test_another_model_gets_what_is_known_of_this_one_and_a_wrong_question_stays(open_tab, commit, expect):
    commit(lambda rows: [rows.best(configuration=TILED_32), rows.device(H100)])
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.get_by_label("Device model").select_option("nvidia-h100")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.locator(".match")).to_contain_text("Transferred")
    tab.expected = {422}
    tab.get_by_label("Shape").fill("m=0,n=1,k=1")
    tab.get_by_role("button", name="Look up").click()
    expect(tab.get_by_role("alert")).to_contain_text("shape.m")
    expect(tab.get_by_label("Shape")).to_have_value("m=0,n=1,k=1")


def test_text_is_selected_where_the_browser_admits_no_copying(open_tab, commit, expect):
    commit(lambda rows: rows.best(configuration=TILED_32))
    tab = open_tab("/ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D256,n%3D100,k%3D784")
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    box = tab.locator(".copyable", has_text="curl").first
    box.get_by_role("button").click()
    expect(box.get_by_role("button")).to_have_text("Selected")
    assert tab.evaluate("getSelection().toString()") == box.locator("code").inner_text()


def test_an_age_grows_on_a_page_that_has_ended(open_tab, commit, expect):
    job_id = commit(lambda rows: rows.job(*rows.study()[1:]).id)
    tab = open_tab("/kernels", alone=True)  # its clock is that of all tabs of a profile
    tab.clock.install()
    tab.goto(f"/jobs/{job_id}")
    age = tab.locator("time[data-age]").first
    expect(age).to_contain_text("s ago")
    tab.clock.fast_forward("05:00")
    expect(age).to_contain_text("5 min ago")


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("path", ["/", "/attention", "/results"])
def test_after_back_a_form_shows_the_filter_that_is_in_force(open_tab, commit, expect, path):
    commit(lambda rows: rows.best())
    tab = open_tab(path)
    chosen = tab.locator("form[method=get] select[name=device_model]").first
    chosen.select_option("nvidia-h200")
    if path == "/attention":  # which shows what was chosen at once
        tab.wait_for_url("**device_model=nvidia-h200*")
        tab.go_back()
    else:
        tab.goto("/fleet")
        tab.go_back()
    expect(tab.locator("h1")).to_be_visible()
    expect(chosen).to_have_value("")


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


@pytest.mark.in_turn(2)
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


@pytest.mark.in_turn(2)
def test_no_page_is_heavy(visit, site):
    heaviest = ("/", "/results", f"/studies/{site.imported}", HISTORY)
    for path in heaviest:
        tab = visit(path, alone=True)  # with nothing kept from before
        assert tab.evaluate(WEIGHT) < MOST_BYTES, path


def test_a_later_page_loads_no_static_file_again(visit):
    tab = visit(HISTORY, alone=True)
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
SPANS = [(1, 40, WPT), (41, 200, TILED_16), (201, 8192, TILED_32, True)]
LIBRARY = {1: 0.011, 16: 0.013, 128: 0.033, 1024: 0.140, 8192: 1.0}
OWN_CHOICE = {"own_choice_ms": {1024: 0.142, 8192: 1.02}, "own_choice": "cuBLASLt 13.1.2 (its own choice)"}


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=EXHAUSTIVE), "dark"])
def test_a_table_is_drawn(open_tab, commit, expect, scheme):
    shape = {"m": "1..8192", "n": 4096, "k": 4096}
    table_id = commit(lambda rows: rows.table(shape, SPANS, TIMES, library_ms=LIBRARY, **OWN_CHOICE))
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
