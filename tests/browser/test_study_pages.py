"""A study in a browser: one that is followed while it runs, and one of many trials."""

import base64
import itertools
import re

import pytest
from factories import NAIVE, TILED_16, TILED_32, Rows
from sampling import sampled
from sqlalchemy import text
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
    tab.once("dialog", lambda dialog: dialog.accept())
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


@pytest.mark.in_turn(2)
def test_brush_stays_while_a_running_study_is_drawn_again(open_tab, commit, expect):
    study_id, _ = commit(running)
    tab = open_tab(f"/studies/{study_id}")
    tab.evaluate(NOTE_SELECTION)
    drag_last_axis(tab)
    tab.wait_for_url(re.compile(r"select=time"))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 2")
    expect(tab.locator("body")).to_have_attribute("data-drawn", re.compile("time"))
    expect(tab.locator("#trials p").first).to_contain_text("selected of 2")


@pytest.mark.in_turn(2)
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


TRIALS = 20_000

MOST_BYTES = 200_000
"""Of the page with the trials that its charts draw, as they are sent."""

FIRST_PAINT_MS = 20_000
"""Twenty times what is promised: other tests run meanwhile, and the machine may be slow."""

COPY = text("""
    INSERT INTO trials (study_id, number, job_id, epoch, job_revision, kernel_variant_id, configuration,
                        configuration_hash, outcome, time_ms, ranking_l2, wall_s)
    SELECT study_id, number + place, job_id, 0, place, kernel_variant_id,
           configuration || jsonb_build_object(
             'TILE_WIDTH', 8 * (1 + place % 4), 'A', 1 << (place / 4 % 5), 'B', place / 20 % 7,
             'C', hashint4(place) % 3, 'D', hashint4(place + 1) % 2, 'E', hashint4(place + 2) % 4, 'F', place % 2),
           md5(place::text), 'measured', exp(hashint4(place) / 2147483648.0), 'warm', 0.25
    FROM trials, generate_series(1, :more) AS place WHERE study_id = :study""")
FAIL = text("UPDATE trials SET outcome = 'timed_out', time_ms = NULL WHERE study_id = :study AND number % 16 = 1")
DRAWN = """() => echarts.getInstanceByDom(document.querySelector("#best-by-trial .plot"))
  .getOption().series.filter(({ name }) => ["trials", "timed out"].includes(name)).map(({ data }) => data.length)"""


COUNTED = """async (address) => {
  const image = Object.assign(new Image(), { src: address });
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  let blue = 0;
  for (let at = 0; at < data.length; at += 4) blue += data[at + 2] - data[at] > 40;
  return blue / (canvas.width * canvas.height);
}"""
"""The share of an image's pixels that have the colour of a trial."""


@pytest.fixture
def path(commit, trials):
    def make(rows):
        study, problem, device = rows.study()
        rows.trial(study, rows.job(problem, device, study), TILED_16, 2.0)
        rows.session.execute(COPY, {"study": study.id, "more": trials - 1})
        rows.session.execute(FAIL, {"study": study.id})
        return f"/studies/{study.id}"

    return commit(make)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("trials", [TRIALS])
def test_it_is_small_and_painted_soon_and_every_trial_is_drawn(open_tab, path, expect):
    tab = open_tab("/kernels", alone=True)  # whose requests are heard to the end
    sent = []
    tab.on("requestfinished", lambda asked: sent.append(asked) if path in asked.url else None)
    tab.goto(path)
    for plot in tab.locator(".plot").all():
        expect(plot.locator("canvas").first).to_be_visible()
    painted_ms = until(lambda: tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
    assert painted_ms < FIRST_PAINT_MS
    until(lambda: tab.evaluate("1") and len(sent) == 2, lambda: sent)  # requests are told of during calls
    sizes = [asked.sizes()["responseBodySize"] for asked in sent]
    assert sum(sizes) < MOST_BYTES, sizes
    until(lambda: sum(tab.evaluate(DRAWN)) == TRIALS, lambda: tab.evaluate(DRAWN))
    expect(tab.locator("#summary")).to_contain_text("20,000")
    expect(tab.locator("#trials tbody tr")).to_have_count(50)


USUAL = {("png", 5_000), ("svg", 5_000)}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("kind", "trials"), sampled(itertools.product(("png", "svg"), (TRIALS, 5_000)), lambda *case: case in USUAL)
)
def test_a_saved_picture_has_every_trial_that_the_page_shows(open_tab, path, expect, kind):
    tab = open_tab(path)
    plot = tab.locator("#best-by-trial .plot")
    expect(plot.locator("canvas").first).to_be_visible()
    with tab.expect_download() as saved:
        tab.get_by_role("group", name="Best so far, over trials").get_by_role("button", name=kind.upper()).click()
    content = saved.value.path().read_bytes()
    type_ = {"png": "image/png", "svg": "image/svg+xml"}[kind]
    tab.goto("about:blank")  # which lets an image of any source be read
    in_picture = tab.evaluate(COUNTED, f"data:{type_};base64,{base64.b64encode(content).decode()}")
    tab.goto(path)
    expect(plot.locator("canvas").first).to_be_visible()
    shown = base64.b64encode(plot.screenshot()).decode()
    tab.goto("about:blank")
    on_page = tab.evaluate(COUNTED, f"data:image/png;base64,{shown}")
    assert in_picture == pytest.approx(on_page, rel=0.25)
