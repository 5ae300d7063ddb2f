"""How soon every kind of page is there, with ten device models and two hundred shapes, and how heavy it is."""

import html
import logging
import re

import httpx
import pytest
import ten_models
import three_models
from cost import cost_s
from factories import NAIVE, TILED_16, TILED_32
from waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.exhaustive]

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
def filled(commit):
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
    tab = open_tab("about:blank")
    measure = tab.context.new_cdp_session(tab)
    measure.send("Performance.enable", {"timeDomain": "threadTicks"})
    server_s = cost_s(lambda: tab.goto(path, wait_until="load"))
    until(lambda: tab.evaluate(PAINTED))  # the policy lets no page wait for a text of code
    of_page = {one["name"]: one["value"] for one in measure.send("Performance.getMetrics")["metrics"]}
    seen = tab.evaluate(PAINTED)[0], server_s, of_page["TaskDuration"], tab.evaluate(WEIGHTS)
    tab.context.close()
    return seen


def test_every_kind_of_page_is_painted_within_a_second(open_tab, filled, address):
    late, heavy = {}, {}
    for kind, path in kinds(address, filled).items():
        first_ms, server_s, page_s, weights = painted(open_tab, path)
        charts = sum(size for name, size in weights if CHARTS in name)
        own = sum(size for _, size in weights) - charts
        logger.info(ROW, kind, first_ms, server_s, page_s, own / 1024, charts / 1024)
        if server_s + page_s > MOST_PAINT_S:
            late[path] = server_s, page_s
        if own > MOST_BYTES or own + charts > MOST_BYTES_IN_ALL:
            heavy[path] = own, charts
    assert (late, heavy) == ({}, {})
