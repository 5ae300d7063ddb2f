"""The dashboard as a person uses it."""

import html
import logging
import re

import httpx
import pytest
import ten_models
import three_models
from cpu_time import cost_s
from factories import CPU, H100, NAIVE, SHAPE, TILED_16, TILED_32
from sampling import EXHAUSTIVE
from sqlalchemy import func
from waiting import until

from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.tuner.outcome import Outcome

pytestmark = pytest.mark.browser


NARROW = 390


@pytest.fixture
def filled(commit):
    """Ids of a database with something of everything."""

    def make(rows):
        ahead = rows.best(time_ms=0.0213, library_ms=0.0298)
        ahead.roof_ratio, ahead.ties = 0.41, 2
        rows.best(SHAPE | {"m": 4096, "n": 4096}, 1.9, library_ms=1.4, configuration=TILED_32).roof_ratio = 0.82
        rows.best(SHAPE | {"k": 100}, 0.9, model=CPU)
        rows.device(H100)
        return ahead.job_id, running_job(rows)

    return commit(make)


def running_job(rows, shape=None):
    study, problem, device = rows.study(shape or SHAPE | {"m": 7})
    job = rows.job(problem, device, study, models.JobState.RUNNING, 3)
    rows.trial(study, job, TILED_16, 2.0)
    rows.trial(study, job, NAIVE, outcome=Outcome.COMPILE_FAILED).log = "error: too many registers"
    rows.trial(study, job, TILED_32, 1.25)
    return job.id, study.id


def add_trial(job_id, study_id, configuration, time_ms, *, state=None):
    """One more trial as a worker records it, and perhaps the end of the job."""
    from factories import Rows  # noqa: PLC0415 - on the path since the conftest

    with transaction() as session:
        job = session.get_one(models.TuningJob, job_id)
        rows = Rows(session, {study_id: job.trials_done})
        rows.trial(session.get_one(models.Study, study_id), job, configuration, time_ms)
        job.trials_done += 1
        if state is not None:
            job.state, job.phase, job.finished_at = state, "finished", func.now()
            job.revision = job.state_revision = job.revision + 1


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=EXHAUSTIVE), (NARROW, "dark")])
def test_every_page_opens_without_a_complaint_and_fits(open_tab, filled, scheme, width):
    done, (running, study) = filled
    paths = ["/", "/jobs", f"/jobs/{done}", f"/jobs/{running}", f"/studies/{study}", "/schedules", "/kernels"]
    tab = open_tab("/kernels/gemm", width=width, color_scheme=scheme)
    for path in [*paths, "/device-models/nvidia-h200", "/kernels/linear"]:
        tab.goto(path)
        assert tab.locator("h1").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, path


@pytest.mark.in_turn(2)
def test_text_is_readable_in_both_schemes(open_tab, filled):
    """WCAG AA: 4.5 to 1 for every text against what is behind it."""
    _, (running, _) = filled
    tab = open_tab("/")
    for path in ["/", f"/jobs/{running}", "/schedules"]:
        tab.goto(path)
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            weak = [line for line in tab.evaluate(CONTRASTS) if line["contrast"] < 4.5]
            assert not weak, (path, scheme)


def test_filter_leads_to_an_address_that_shows_the_same(open_tab, filled, expect):
    tab = open_tab("/results")
    tab.get_by_label("Device model").select_option("nvidia-h200")
    tab.get_by_role("button", name="Show").click()
    tab.wait_for_url(re.compile(r"device_model=nvidia-h200"))
    expect(tab.locator("#best section")).to_have_count(1)
    tab.reload()
    expect(tab.locator("#best section")).to_have_count(1)


def test_running_job_is_seen_live_until_it_ends(open_tab, commit, expect):
    job_id, study_id = commit(running_job)
    tab = open_tab(f"/jobs/{job_id}")
    expect(tab.locator("#connection")).to_contain_text("live")
    expect(tab.locator(".figure")).to_have_text("1.25\N{NO-BREAK SPACE}ms")
    tab.get_by_text("Log", exact=True).click()
    add_trial(job_id, study_id, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 0.75)
    expect(tab.locator(".figure")).to_have_text("750\N{NO-BREAK SPACE}µs")
    expect(tab.locator("#job tbody tr")).to_have_count(4)
    expect(tab.get_by_text("too many registers")).to_be_visible()  # what was unfolded stays so
    add_trial(job_id, study_id, TILED_16.of("tiled", {"TILE_WIDTH": 24}), 0.5, state=models.JobState.DONE)
    expect(tab.locator(".figure")).to_have_text("500\N{NO-BREAK SPACE}µs")
    expect(tab.locator("#job .state")).to_contain_text("done")
    expect(tab.locator("#connection")).to_be_empty()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("script", ["htmx-sse.min.js", "live.js"])
def test_job_is_followed_however_late_a_script_comes(open_tab, commit, expect, script):
    job_id, _ = commit(running_job)
    tab = open_tab("/")
    held = []
    tab.route(re.compile(f"/{script}"), lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    with tab.expect_request(re.compile(f"/{script}")):
        tab.goto(f"/jobs/{job_id}", wait_until="commit")
    expect(tab.locator("#job")).to_be_visible()
    expect(tab.locator("#connection")).to_be_empty()
    (route,) = held
    route.continue_()
    expect(tab.locator("#connection")).to_contain_text("live")


def test_a_hidden_page_holds_no_connection_and_catches_up_when_seen(open_tab, commit, expect):
    job_id, study_id = commit(running_job)
    tab = open_tab(f"/jobs/{job_id}")
    expect(tab.locator("#connection")).to_contain_text("live")
    tab.evaluate(SHOW, 0)
    expect(tab.locator("#connection")).to_be_empty()
    add_trial(job_id, study_id, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 0.75)
    tab.evaluate(SHOW, 1)
    expect(tab.locator(".figure")).to_have_text("750\N{NO-BREAK SPACE}µs")


def test_jobs_on_the_overview_move_by_themselves(open_tab, commit, expect):
    job_id, study_id = commit(running_job)
    tab = open_tab("/")
    expect(tab.locator("#jobs progress")).to_have_attribute("value", "3")
    add_trial(job_id, study_id, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 0.75)
    expect(tab.locator("#jobs progress")).to_have_attribute("value", "4")


def test_job_is_cancelled_from_its_page(open_tab, commit, expect):
    def queued(rows):
        _, problem, device = rows.study()
        return rows.job(problem, device, None, models.JobState.QUEUED, 0).id

    tab = open_tab(f"/jobs/{commit(queued)}")
    tab.once("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.locator("#job .state")).to_contain_text("cancelled")
    expect(tab.get_by_role("button", name="Cancel")).to_have_count(0)


def test_keyboard_reaches_everything_and_shows_where_it_is(open_tab, filled):
    tab = open_tab("/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
    for _ in range(8):
        tab.keyboard.press("Tab")
        width = tab.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 2


SHOW = """(seen) => {
  Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

CONTRASTS = """() => {
  const light = (c) => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).slice(0, 3)
      .map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c !== "rgba(0, 0, 0, 0)") return c;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.checkVisibility())
    .map((e) => {
      const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
      return { text: e.textContent.trim().slice(0, 40), contrast: (a + 0.05) / (b + 0.05) };
    });
}"""


logger = logging.getLogger(__name__)
ROW = "%-28s painted after %4.0f ms; CPU: server %.2f s, page %.2f s; %2.0f KiB, charts %.0f KiB"
"""Shown by `pytest -m exhaustive --log-cli-level=INFO`."""

MOST_PAINT_S = 1.0
"""From the request to the first paint on two cores: of CPU time, which is the same however busy they are."""

MOST_BYTES, MOST_BYTES_IN_ALL = 60 * 1024, 500 * 1024
CHARTS = "vendor/echarts.min.js"
REST = ten_models.Size(models=ten_models.MODELS[3:], trials=8)
BEGUN = ("/sign-in", "/views", "/access", "/attention", "/demand", "/schedules", "/fleet", "/jobs", "/results")
BEGUN += ("/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100&show=all", "/ask?kernel=gemm", "/history", "/kernels")

NAMED = re.compile(r"/(studies|trials|jobs|tables|variants|kernels|device-models)/[^/]+")
WEIGHTS = """
[...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")]
    .map(({ name, transferSize }) => [name, transferSize])
"""
PAINTED = 'performance.getEntriesByName("first-contentful-paint").map(({ startTime }) => startTime)'


def kinds(address: str, *more: str) -> dict[str, str]:
    """An address of each kind of page that links lead to; those that differ by names and numbers are of one kind."""
    found: dict[str, str] = {}
    left, seen = ["/", *BEGUN, *more], set()
    while left:
        path = left.pop(0)
        kind = NAMED.sub(r"/\1/…", path.partition("?")[0])
        if kind in seen or path.startswith("/v1/"):
            continue
        seen.add(kind)
        answer = httpx.get(address + path, timeout=60, follow_redirects=True)
        if answer.is_success and answer.headers["content-type"].startswith("text/html"):
            found[kind] = path
            body = answer.text.partition('<main id="main">')[2]
            left += [html.unescape(link).partition("#")[0] for link in re.findall(r'href="(/[^"]*)"', body)]
    return found


@pytest.fixture
def filled_with_ten(commit):
    """Three device models with results of every kind, and seven more with results of gemm."""

    def make(rows):
        three_models.fill(rows)
        ten_models.fill(rows, REST)
        spans = [(1, 40, NAIVE), (41, 200, TILED_16), (201, 8192, TILED_32)]
        times = {configuration: {1: 0.01, 128: 0.03, 8192: 1.7} for _, _, configuration in spans}
        return rows.table({"m": "1..8192", "n": 4096, "k": 4096}, spans, times)

    table = commit(make)
    return f"/tables/{table}"


def painted(open_tab, path: str) -> tuple[float, float, float, list]:
    """Milliseconds until the first paint, CPU seconds of the server and of the page's own thread, bytes by address."""
    tab = open_tab("about:blank", alone=True)
    measure = tab.context.new_cdp_session(tab)
    measure.send("Performance.enable", {"timeDomain": "threadTicks"})
    server_s = cost_s(lambda: tab.goto(path, wait_until="load"))
    until(lambda: tab.evaluate(PAINTED))  # the policy lets no page wait for a text of code
    of_page = {one["name"]: one["value"] for one in measure.send("Performance.getMetrics")["metrics"]}
    seen = tab.evaluate(PAINTED)[0], server_s, of_page["TaskDuration"], tab.evaluate(WEIGHTS)
    tab.context.close()
    return seen


@pytest.mark.exhaustive
def test_every_kind_of_page_is_painted_within_a_second(open_tab, filled_with_ten, address):
    late, heavy = {}, {}
    for kind, path in kinds(address, filled_with_ten).items():
        first_ms, server_s, page_s, weights = painted(open_tab, path)
        charts = sum(size for name, size in weights if CHARTS in name)
        own = sum(size for _, size in weights) - charts
        logger.info(ROW, kind, first_ms, server_s, page_s, own / 1024, charts / 1024)
        if server_s + page_s > MOST_PAINT_S:
            late[path] = server_s, page_s
        if own > MOST_BYTES or own + charts > MOST_BYTES_IN_ALL:
            heavy[path] = own, charts
    assert (late, heavy) == ({}, {})
