"""The views on measurements that were really made: opened, used, and judged by what a person would see."""

import dataclasses
import re
from pathlib import Path

import pytest
from factories import CPU, H100, TILED_16, TILED_32
from real_rows import CPU_GEMM, Filler

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.device import Environment
from tilewright.tuner.recordings import read_recording

pytestmark = pytest.mark.browser

NARROW = 390
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
CPU_ENVIRONMENT = Environment("", "", "gcc", "12", "ctypes", "default")


@pytest.fixture
def expect():
    return pytest.importorskip("playwright.sync_api").expect


@pytest.fixture
def measured(configured):
    """The exported H200 results and a recorded search on a CPU; the id of the CPU's study."""
    read = read_recording(CPU_GEMM)
    with transaction() as session:
        filler = Filler(session)
        filler.main_job()
        model = dataclasses.replace(CPU, slug="cpu:recorded", name=read.device_name)
        return filler.recording(read, model, CPU_ENVIRONMENT)


@pytest.fixture
def paths(measured):
    shape = "shape=m%3D1024,n%3D1024,k%3D1024"
    return [
        "/?kernel=gemm",
        "/results",
        f"/studies/{measured}",
        f"/studies/{measured}/trials/0",
        "/device-models/nvidia-h200",
        f"/ask?kernel=gemm&device_model=nvidia-h200&{shape}",
    ]


@pytest.mark.parametrize("width", [1280, NARROW])
def test_every_view_is_accessible_fits_and_does_not_complain(open_tab, paths, scheme, width):
    """No serious violation of WCAG 2.2 A and AA by axe-core, in both schemes and at a phone's width."""
    tab = open_tab("/kernels", width=width, **scheme)
    for path in paths:
        tab.goto(path)
        tab.wait_for_load_state("networkidle")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, path
        assert serious(tab) == [], path


def serious(tab):
    """What axe-core calls serious or critical, in short. The tool itself is let past the content policy."""
    tab.evaluate(AXE.read_text(encoding="utf-8"))
    found = tab.evaluate("axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] })")
    bad = [v for v in found["violations"] if v["impact"] in {"serious", "critical"}]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in bad]


def test_charts_are_drawn_and_nothing_is_asked_of_another_host(open_tab, paths, address):
    tab = open_tab("/kernels")
    asked = []
    tab.on("request", lambda request: asked.append(request.url))
    for path in paths:
        tab.goto(path)
        for plot in tab.locator(".plot").all():
            assert plot.locator("canvas").count() >= 1, path
    assert all(url.startswith(address) for url in asked)


def test_matrix_is_filtered_by_its_form_and_a_cell_leads_to_source_and_flags(open_tab, measured, expect):
    tab = open_tab("/?kernel=gemm")
    tab.locator("select[name=family]").select_option("square")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"family=square"))
    expect(tab.locator(".group")).to_have_count(1)
    tab.get_by_role("row", name=re.compile("m=2048")).locator(".figure").click()
    tab.wait_for_url(re.compile(r"/studies/\d+$"))
    tab.locator("#trials tbody th a").first.click()
    tab.wait_for_url(re.compile(r"/trials/\d+$"))
    expect(tab.get_by_role("heading", name="Compiler flags")).to_be_visible()
    expect(tab.locator("pre", has_text="-DWPT_M=")).to_be_visible()
    expect(tab.locator("pre", has_text="tilewright tune gemm")).to_be_visible()
    expect(tab.locator("#source pre")).to_contain_text("__global__")


def test_brushing_an_axis_selects_trials_and_stands_in_the_address(open_tab, measured, expect):
    tab = open_tab(f"/studies/{measured}")
    before = tab.locator("#trials p").first.inner_text()
    drag_last_axis(tab)
    tab.wait_for_url(re.compile(r"select=time"))
    expect(tab.locator("#trials p").first).not_to_have_text(before)
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    chosen = tab.locator("#trials p").first.inner_text()
    tab.reload()
    expect(tab.locator("#trials p").first).to_have_text(chosen)
    tab.get_by_role("link", name="Clear the selection").click()
    expect(tab.locator("#trials p").first).to_have_text(before)


def drag_last_axis(tab):
    """Drags along the upper half of the axis of times."""
    plot = tab.locator("#parallel .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    x, top, bottom = box["x"] + box["width"] - 72, box["y"] + 40, box["y"] + box["height"] - 28
    tab.mouse.move(x, (top + bottom) / 2)
    tab.mouse.down()
    tab.mouse.move(x, top + 20, steps=5)
    tab.mouse.move(x, top + 4, steps=5)
    tab.mouse.up()


def test_selection_works_without_scripts(open_tab, measured, expect):
    tab = open_tab(f"/studies/{measured}", java_script_enabled=False)
    tab.get_by_label("Only with").fill("TILE_K=16..32")
    tab.get_by_label("Order").select_option("newest")
    tab.locator("form", has=tab.get_by_label("Only with")).get_by_role("button").click()
    expect(tab.locator("#trials p").first).to_contain_text("selected of 40")
    said = tab.locator("#trials tbody code").all_inner_texts()
    assert said
    assert all(re.search(r"TILE_K=(16|32)\b", text) for text in said)


def test_heat_map_and_slice_follow_their_form(open_tab, measured, expect):
    tab = open_tab(f"/studies/{measured}")
    tab.get_by_label("Slice by").select_option("TILE_K")
    tab.get_by_role("button", name="Draw").click()
    tab.wait_for_url(re.compile(r"slice=TILE_K"))
    expect(tab.locator("#slice figcaption")).to_contain_text("Time by TILE_K")


def test_running_study_moves_by_itself_says_what_is_left_and_is_cancelled(open_tab, commit, expect):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, models.JobState.RUNNING, 2)
        job.elapsed_s, job.budget_trials = 10.0, 10
        rows.trial(study, job, TILED_16, 2.0)
        rows.trial(study, job, TILED_32, 1.5)
        return study.id, job.id

    study_id, job_id = commit(make)
    tab = open_tab(f"/studies/{study_id}")
    tab.on("dialog", lambda dialog: dialog.accept())
    expect(tab.locator("#summary")).to_contain_text("at most 40 s left")
    with transaction() as session:
        from factories import Rows  # noqa: PLC0415 - on the path since the conftest

        job = session.get_one(models.TuningJob, job_id)
        rows = Rows(session, {study_id: 2})
        rows.trial(session.get_one(models.Study, study_id), job, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 0.75)
    expect(tab.locator("#summary .figure")).to_have_text("0.750 ms")
    expect(tab.locator("#trials tbody tr")).to_have_count(3)
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("#summary")).to_contain_text("stopping after the running trial")


def test_asking_shows_how_it_was_found_and_keeps_a_wrong_question(open_tab, commit, expect):
    commit(lambda rows: [rows.best(configuration=TILED_32), rows.device(H100)])
    tab = open_tab("/ask")
    tab.get_by_label("Device model").select_option("nvidia-h200")
    tab.get_by_label("Shape").fill("m=256,n=100,k=784")
    tab.get_by_role("button", name="Ask").click()
    expect(tab.locator(".match")).to_contain_text("Exact")
    expect(tab.locator("pre.source")).to_contain_text("#define TILE_WIDTH 32")
    tab.get_by_label("Device model").select_option("nvidia-h100")
    tab.get_by_role("button", name="Ask").click()
    expect(tab.locator(".match")).to_contain_text("Transferred")
    tab.expected = {422}
    tab.get_by_label("Shape").fill("m=0,n=1,k=1")
    tab.get_by_role("button", name="Ask").click()
    expect(tab.get_by_role("alert")).to_contain_text("shape.m")
    expect(tab.get_by_label("Shape")).to_have_value("m=0,n=1,k=1")
