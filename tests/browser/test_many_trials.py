"""A study of 20,000 trials, as a laptop opens it."""

import pytest
from factories import TILED_16
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


@pytest.fixture
def path(commit):
    def make(rows):
        study, problem, device = rows.study()
        rows.trial(study, rows.job(problem, device, study), TILED_16, 2.0)
        rows.session.execute(COPY, {"study": study.id, "more": TRIALS - 1})
        rows.session.execute(FAIL, {"study": study.id})
        return f"/studies/{study.id}"

    return commit(make)


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
