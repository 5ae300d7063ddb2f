"""Two thousand figures that pages show, each held against REST: with three GPU models and two hundred shapes."""

import html
import re
from urllib.parse import unquote

import pytest
import three_models
from cost import cost_s
from factories import Rows
from sqlalchemy import text

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.transaction import transaction

LEAST_FIGURES = 2_000
MS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
NUMBER = r"([\d,.]+)"
ROW = re.compile(r'<tr>\n<th scope="row"><a href="/kernels/[^"]+/problem.*?</tr>', re.DOTALL)


@pytest.fixture
def many(client):
    """The three models."""
    with transaction() as session:
        three_models.fill(Rows(session))
    with transaction() as session:
        session.execute(text("ANALYZE"))


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


def test_no_figure_of_the_pages_differs_from_rest(client, page, many):
    differences = Differences()
    for slug in ("nvidia-h200", "nvidia-h100", "nvidia-a100"):
        check_results(page, client, differences, slug)
    check_matrix(page, client, differences)
    assert differences.looked_at >= LEAST_FIGURES
    assert differences.found == []
    assert cost_s(lambda: page("/")) < FIRST_PAGE_S


FIRST_PAGE_S = 2.0
"""CPU seconds of the first page and of the database for it; 0.3 s are promised of an idle machine."""
