"""A study whose job is under way, as a person follows it."""

import re

import pytest
from factories import NAIVE, TILED_16, TILED_32, Rows
from test_views import drag_last_axis
from waiting import until

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models

pytestmark = pytest.mark.browser


def running(rows):
    """Ids of a study and of its job, which has made two of ten trials in ten seconds."""
    study, problem, device = rows.study()
    job = rows.job(problem, device, study, models.JobState.RUNNING, 2)
    job.elapsed_s, job.budget_trials = 10.0, 10
    rows.trial(study, job, TILED_16, 2.0)
    rows.trial(study, job, TILED_32, 1.5)
    return study.id, job.id


def test_running_study_moves_by_itself_says_what_is_left_and_is_cancelled(open_tab, commit, expect):
    study_id, job_id = commit(running)
    tab = open_tab(f"/studies/{study_id}")
    tab.on("dialog", lambda dialog: dialog.accept())
    expect(tab.locator("#summary")).to_contain_text(
        "about 1 min 0 s left"
    )  # eight trials of 5 s, and finals like four more
    with transaction() as session:
        job = session.get_one(models.TuningJob, job_id)
        rows = Rows(session, {study_id: 2})
        rows.trial(session.get_one(models.Study, study_id), job, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 0.75)
    expect(tab.locator("#summary .figure")).to_have_text(re.compile("750.\\Ss"))
    expect(tab.locator("#trials tbody tr")).to_have_count(3)
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("#summary")).to_contain_text("stopping after the running trial")


def test_brush_stays_while_a_running_study_is_drawn_again(open_tab, commit, expect):
    study_id, _ = commit(running)
    tab = open_tab(f"/studies/{study_id}")
    tab.evaluate(NOTE_SELECTION)
    drag_last_axis(tab)
    tab.wait_for_url(re.compile(r"select=time"))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 2")
    expect(tab.locator("body")).to_have_attribute("data-drawn", re.compile("time"))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 2")


def test_a_live_heat_map_keeps_its_axes_its_tooltip_and_the_order_of_variants(open_tab, commit, expect):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, models.JobState.RUNNING, 2)
        for x, y in ((32, 8), (32, 16), (64, 4)):
            rows.trial(study, job, NAIVE.of("naive", {"BLOCK_X": x, "BLOCK_Y": y}), 2.0)
        rows.trial(study, job, TILED_16, 2.0)
        return study.id, job.id

    study_id, job_id = commit(make)
    tab = open_tab(f"/studies/{study_id}?variant=naive")
    expect(tab.locator("#heat canvas").first).to_be_visible()
    before = until(lambda: tab.evaluate(SHOW_TIP) or ((seen := tab.evaluate(HEAT_MAP))["tip"] and seen))
    assert before["tip"] == ["BLOCK_X=32 BLOCK_Y=8: 2.00\N{NO-BREAK SPACE}ms"]
    with transaction() as session:
        job = session.get_one(models.TuningJob, job_id)
        rows = Rows(session, {study_id: 4})
        for x, y in ((16, 2), (256, 1)):
            configuration = NAIVE.of("naive", {"BLOCK_X": x, "BLOCK_Y": y})
            rows.trial(session.get_one(models.Study, study_id), job, configuration, 0.5)
        for place in range(9):
            rows.trial(session.get_one(models.Study, study_id), job, TILED_16.of("tiled", {"PLACE": place}), 0.1)
    # The page draws one chart after the other, and the tooltip again after its map.
    until(lambda: tab.evaluate(TRIALS_DRAWN) == 5)
    until(lambda: tab.evaluate(HEAT_MAP)["cells"] == 5 and tab.evaluate(HEAT_MAP)["tip"])
    after = tab.evaluate(HEAT_MAP)
    assert (after["x"], after["y"]) == (before["x"], before["y"])
    expect(tab.get_by_role("navigation", name="Variant").get_by_role("link")).to_have_text(["naive", "tiled"])


IN_HEAT_MAP = "echarts.getInstanceByDom(document.querySelector('#heat .plot'))"
SHOW_TIP = f"() => {{ {IN_HEAT_MAP}.dispatchAction({{ type: 'showTip', seriesIndex: 0, dataIndex: 0 }}); }}"
HEAT_MAP = f"""() => {{
  const chart = {IN_HEAT_MAP};
  const {{ xAxis, yAxis, series }} = chart.getOption();
  const texts = chart.getZr().storage.getDisplayList(true).map((shape) => shape.parent?.style?.text ?? "");
  const tip = [...new Set(texts.filter((text) => text.includes("BLOCK_X=")))];
  return {{ x: xAxis[0].data, y: yAxis[0].data, cells: series[0].data.length, tip }};
}}"""
TRIALS_DRAWN = (
    """() => echarts.getInstanceByDom(document.querySelector("#slice .plot")).getOption().series[0].data.length"""
)


# What the charts are drawn from, after each refresh.
NOTE_SELECTION = """() => document.addEventListener("htmx:after:swap", () => {
  const options = JSON.parse(document.getElementById("parallel-options").textContent);
  document.body.dataset.drawn = Object.keys(options.selection).join();
})"""
