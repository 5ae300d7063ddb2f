"""A study of 20,000 trials, as a laptop opens it."""

import base64
import itertools

import pytest
from factories import TILED_16
from sampling import sampled
from sqlalchemy import text
from waiting import until

pytestmark = pytest.mark.browser

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


@pytest.mark.parametrize("trials", [TRIALS])
def test_it_is_small_and_painted_soon_and_every_trial_is_drawn(open_tab, path, expect):
    tab = open_tab("/kernels")
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


@pytest.mark.in_turn(2)
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
