"""Every page with three GPU models and a hundred shapes: its weight, its way to tuning again, and a thousand figures.

Each figure is held against REST.
"""

import gzip
import html
import re
from functools import cache
from urllib.parse import unquote

import pytest
import three_models
from caller import Caller, new_app
from cpu_time import cost_s
from factories import NAIVE, TILED_16, TILED_32, Rows
from sqlalchemy import select

from tilewright.service.dashboard import STATIC
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store import session as store_session

MOST_BYTES, MOST_BYTES_IN_ALL = 60 * 1024, 500 * 1024
SHAPE = "m%3D1000,n%3D1000,k%3D1000"
CHARTS = "vendor/echarts.min.js"
PATHS = (
    "/",
    "/?kernel=gemm&device_model=nvidia-h200",
    "/results",
    "/compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100&show=all",
    "/history",
    "/views",
    f"/ask?kernel=gemm&device_model=nvidia-h200&shape={SHAPE}",
    "/kernels",
    "/kernels/gemm",
    f"/kernels/gemm/problem?shape={SHAPE}",
    "/device-models/nvidia-h200",
    "/attention",
    "/demand",
    "/jobs",
    "/schedules",
    "/fleet",
    "/access",
)
NO_PROBLEM = ("/kernels", "/schedules", "/fleet", "/access", "/views", "/sign-in")
"""Pages that show none here. The fleet's lead to those of the failed jobs."""
TUNES = re.compile(r'hx-post="/v1/(jobs|attention:tune|demand:tune)')

LEAST_FIGURES = 1_000
MS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
NUMBER = r"([\d,.]+)"
ROW = re.compile(r'<tr>\n<th scope="row"><a href="/kernels/[^"]+/problem.*?</tr>', re.DOTALL)
FIRST_PAGE_S = 2.0
"""CPU seconds of the first page and of the database for it; 0.3 s are promised of an idle machine."""


@pytest.fixture(scope="module")
def filled(new_database) -> tuple[str, list[str]]:
    """A database with all of it, which these tests only read, and the pages about its rows."""
    url = new_database("three_models")
    store_session.configure(url)
    with transaction() as session:
        rows = Rows(session)
        three_models.fill(rows)
        spans = [(1, 40, NAIVE), (41, 200, TILED_16), (201, 8192, TILED_32)]
        times = {c: {1: 0.01, 128: 0.03, 8192: 1.7} for _, _, c in spans}
        table = rows.table({"m": "1..8192", "n": 4096, "k": 4096}, spans, times)
        study = session.scalars(select(models.Trial.study_id).order_by(models.Trial.id.desc())).first()
        job = models.TuningJob
        jobs = {state: job_id for job_id, state in session.execute(select(job.id, job.state))}
    store_session.configure(None)
    rest = [f"/studies/{study}", f"/studies/{study}/trials/0", f"/tables/{table}"]
    return url, [*PATHS, *rest, *(f"/jobs/{job_id}" for job_id in jobs.values())]


@pytest.fixture
def client(filled):
    """In place of that of other tests, whose database is emptied."""
    store_session.configure(filled[0])
    client = Caller(new_app())
    yield client
    client.app.state.pool.close()
    store_session.configure(None)


def weighed(shown: str) -> tuple[int, int]:
    """The bytes of a page with its style sheet and scripts, all gzipped, and those of the charts' library."""
    files = {name.partition("?")[0] for name in re.findall(r'(?:src|href|content)="/static/([^"]+)"', shown)}
    files |= {"chart-tools.js", "columns.js", "free-chart.js"} if CHARTS in files else set()
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes())) for name in files}
    charts = sizes.pop(CHARTS, 0)
    return len(gzip.compress(shown.encode())) + sum(sizes.values()), charts


def is_tuning(shown: str) -> bool:
    return TUNES.search(shown) is not None


@pytest.mark.in_turn(3)
def test_every_page_is_light_and_tuning_again_is_two_clicks_away(page, filled):
    heavy, far, page = {}, [], cache(page)
    for path in filled[1]:
        shown = page(path)
        own, charts = weighed(shown)
        if own > MOST_BYTES or own + charts > MOST_BYTES_IN_ALL:
            heavy[path] = own, charts
        if path in NO_PROBLEM or is_tuning(shown):  # the button itself is the first click
            continue
        body = html.unescape(shown.partition('<main id="main">')[2])
        link = re.search(r'href="(/kernels/[\w-]+/problem[^"#]*)', body)
        if link is None or not is_tuning(page(link[1])):
            far.append(path)
    assert (heavy, far) == ({}, [])


def number(shown: str) -> tuple[float, float]:
    """The value of a figure and half of its last digit."""
    plain = shown.replace(",", "")
    return float(plain), 0.5 * 10 ** -len(plain.partition(".")[2])


class Differences:
    """The figures looked at, and those that are not what REST says."""

    def __init__(self):
        self.looked_at, self.found = 0, []

    def check(self, where: str, shown: str, value: float | None, unit: float = 1.0):
        """Whether a figure is the value, rounded to its last digit; three digits are kept at least."""
        self.looked_at += 1
        said, half = number(shown)
        if value is None or abs(said * unit - value) > half * unit * 1.001:
            self.found.append(f"{where}: {shown} is shown, {value} is stored")


def results(client, slug: str) -> dict[int, dict]:
    """Every current result of a model by its study, as REST has it."""
    found, cursor = {}, ""
    while True:
        answer = client.get(f"/v1/results?device_model={slug}&limit=100{cursor}").json()
        found |= {item["study_id"]: item for item in answer["items"]}
        if not answer["next_cursor"]:
            return found
        cursor = f"&cursor={answer['next_cursor']}"


def check_results(page, client, differences, slug):
    """The table of all results of a model, page by page."""
    stored, seen, path = results(client, slug), 0, f"/device-models/{slug}"
    while path:
        shown = page(path)
        table = shown.split('aria-label="Best configurations"')[1].split("</table>")[0]
        for row in ROW.findall(table):
            item = stored[int(re.search(r'href="/studies/(\d+)"', row)[1])]
            seen += 1
            check_row(differences, row, item)
        before, is_more, _ = shown.partition('" rel="next"')
        path = html.unescape(before.rpartition('href="')[2]).partition("#")[0] if is_more else None
    assert seen == len(stored)


def check_row(differences, row, item):
    """Time, interval, roof, both gains and the error of one row."""
    where, plain = f"study {item['study_id']}", row.replace("\N{NO-BREAK SPACE}", " ")
    time, unit = re.search(rf'/studies/\d+">{NUMBER} (\w+)</a>', plain).groups()
    differences.check(f"{where} time", time, item["time_ms"], MS[unit])
    low, high, unit = re.search(rf">{NUMBER} to {NUMBER} (\w+)</small>", plain).groups()
    for word, bound, value in zip(("low", "high"), (low, high), item["ci_ms"], strict=True):
        differences.check(f"{where} {word}", bound, value, MS[unit])
    ratios = re.findall(rf"{TIMES}{NUMBER}", plain.split('data-label="Over the default"')[1])
    differences.check(f"{where} over the default", ratios[0], item["gain_over_default"])
    if item["library"]:
        differences.check(f"{where} over the library", ratios[1], item["library"]["speedup"])
    roof = re.search(rf'data-label="Of the roof"><span>{NUMBER} %', plain)
    if item["roof_ratio"] is not None:
        differences.check(f"{where} roof", roof[1], item["roof_ratio"], 0.01)


def check_matrix(page, client, differences):
    """Ratio and time of every cell, and the counts above them."""
    cells, cursor = {}, ""
    while True:
        answer = client.get(f"/v1/kernels/gemm/matrix?limit=50{cursor}").json()
        for row in answer["items"]:
            cells |= {cell["result"]["study_id"]: cell["result"] for cell in row["cells"] if cell["result"]}
        if not answer["next_cursor"]:
            break
        cursor = f"&cursor={answer['next_cursor']}"
    path = "/?kernel=gemm&order=size"
    for line in answer["models"]:
        shown = page(path).split('aria-label="Device models"')[1].split("</table>")[0]
        row = next(
            part
            for part in shown.split("<tr")
            if f"device_model={line['device_model']}" in unquote(html.unescape(part))
        )
        counts = re.findall(r'data-label="[^"]+">(?:<a [^>]+>)?([\d,]+)', row)
        for count, value in zip(counts, [line["tuned"], *line["counts"].values()], strict=True):
            differences.check(f"strip of {line['device_model']}", count, value)
    while path:
        shown = page(path).replace("\N{NO-BREAK SPACE}", " ")
        for study, body in re.findall(r'<td class="cell [^"]*"><a href="/studies/(\d+)"[^>]*>(.*?)</a>', shown):
            result = cells[int(study)]
            time, unit = re.search(rf'figure">{NUMBER} (\w+)<', body).groups()
            differences.check(f"cell of study {study}", time, result["time_ms"], MS[unit])
            ratio = re.search(rf"{TIMES}{NUMBER}", body)[1]
            beside = result["library"]["speedup"] if result["library"] else result["gain_over_default"]
            differences.check(f"cell of study {study}", ratio, beside)
        before, is_more, _ = shown.partition('" rel="next"')
        path = html.unescape(before.rpartition('href="')[2]) if is_more else None


@pytest.mark.in_turn(2)
def test_no_figure_of_the_pages_differs_from_rest(client, page):
    differences = Differences()
    for slug in ("nvidia-h200", "nvidia-h100", "nvidia-a100"):
        check_results(page, client, differences, slug)
    check_matrix(page, client, differences)
    assert differences.looked_at >= LEAST_FIGURES
    assert differences.found == []
    assert cost_s(lambda: page("/")) < FIRST_PAGE_S
