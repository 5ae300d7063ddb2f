"""Figures that pages show with ten device models, each held against REST or computed anew from what REST says."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
import ten_models
import three_models
from factories import Rows

from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.operations.transaction import transaction

pytestmark = pytest.mark.exhaustive

LEAST_FIGURES = 5_000
REST = ten_models.Size(models=ten_models.MODELS[3:], trials=2)
MS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
NUMBER = r"([\d,.]+)"
PROBLEMS = 60
"""Pages of problems that are looked at."""


@pytest.fixture
def ten(client):
    """Three device models with results of every kind, and seven more with results of gemm."""
    with transaction() as session:
        three_models.fill(Rows(session))
        ten_models.fill(Rows(session), REST)


class Figures:
    """The figures looked at, and those that are not what is right, rounded to their last digit."""

    def __init__(self) -> None:
        self.looked_at, self.different = 0, []

    def check(self, where: str, shown: str, value: float | None, unit: float = 1.0) -> None:
        plain = shown.replace(",", "")
        half = 0.5 * 10 ** -len(plain.partition(".")[2])
        self.looked_at += 1
        if value is None or abs(float(plain) - value / unit) > half * 1.001:
            self.different.append(f"{where}: {shown} is shown, {value} is right")

    def ratio(self, where: str, shown: str, value: float | None) -> None:
        self.check(f"{where} ratio", re.search(rf"{TIMES}{NUMBER}", shown)[1], value)

    def percent(self, where: str, shown: str, share: float) -> None:
        self.check(f"{where} share", re.search(rf"{NUMBER} %", shown)[1], share, 0.01)

    def time(self, where: str, shown: str, time_ms: float) -> None:
        number, unit = re.search(rf">{NUMBER} (ns|µs|ms|s)<", shown).groups()
        self.check(f"{where} time", number, time_ms, MS[unit])


def said(page: str) -> str:
    """The page's main part, as text with its tags."""
    return html.unescape(page.partition('<main id="main">')[2]).replace("\N{NO-BREAK SPACE}", " ")


def rows(shown: str) -> Iterator[str]:
    """The table rows that begin with a problem."""
    return (row for row in shown.split("<tr")[1:] if "/problem?" in row.partition("</th>")[0])


def cells(client) -> dict[tuple[str, str], dict]:
    """REST's preferred result of gemm by the problem's address and the device model."""
    found, cursor = {}, ""
    while True:
        answer = client.get(f"/v1/kernels/gemm/matrix?limit=100{cursor}").json()
        for row in answer["items"]:
            sizes = row["problem"]["shape"]
            path = f"/kernels/gemm/problem?shape={','.join(f'{axis}={sizes[axis]}' for axis in 'mnk')}&dtype=float32"
            found |= {(path, cell["device_model"]): cell["result"] for cell in row["cells"] if cell["result"]}
        if not answer["next_cursor"]:
            return found
        cursor = f"&cursor={answer['next_cursor']}"


def path_of(row: str) -> str:
    return unquote(re.search(r'href="([^"#]+)', row)[1])


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def check_first_page(page, figures, stored):
    """The lead, the line of the kernel, those of the device models, and every cell."""
    gpus = {place: result for place, result in stored.items() if not place[1].startswith("cpu")}
    shown = said(page("/"))
    lead = re.search(r'class="lead">(.*?)</p>', shown, re.DOTALL)[1]
    figures.check("lead", re.search(rf"<b>{NUMBER} results", lead)[1], len(gpus))
    figures.ratio("lead", lead, mean([result["library"]["speedup"] for result in gpus.values()]))
    strip = shown.split('aria-label="Device models"')[1].split("</table>")[0]
    for slug in {slug for _, slug in gpus}:
        line = next(part for part in strip.split("<tr") if f'device_model={slug}"' in part)
        own = [result for (_, model), result in gpus.items() if model == slug]
        figures.check(f"strip of {slug}", re.search(r'data-label="tuned">(?:<a[^>]*>)?' + NUMBER, line)[1], len(own))
        figures.ratio(f"strip of {slug}", line, mean([result["library"]["speedup"] for result in own]))
    path, by_study = "/?kernel=gemm&order=size", {result["study_id"]: result for result in stored.values()}
    while path:
        shown = page(path)
        for study, body in re.findall(r'<td class="cell [^"]*"><a href="/studies/(\d+)"[^>]*>(.*?)</a>', said(shown)):
            result = by_study[int(study)]
            figures.time(f"cell of study {study}", body, result["time_ms"])
            beside = result["library"]["speedup"] if result["library"] else result["gain_over_default"]
            figures.ratio(f"cell of study {study}", body, beside)
        before, is_more, _ = shown.partition('" rel="next"')
        path = html.unescape(before.rpartition('href="')[2]) if is_more else None


def check_compared(page, figures, stored, other: str):
    """Both times and their ratio of each row, and what is said of all that both have."""
    first = ten_models.MODELS[0].slug
    shown = said(page(f"/compare?kernel=gemm&a={first}&b={other}&show=all"))
    both = {path for path, slug in stored if slug == first and (path, other) in stored}
    ratios = [stored[path, first]["time_ms"] / stored[path, other]["time_ms"] for path in both]
    told = re.search(r'<p><b class="figure">.*?</ul>', shown, re.DOTALL)[0]
    figures.ratio(f"{other} of all", told, mean(ratios))
    figures.check(f"{other} of all", re.search(rf"over {NUMBER} problems", told)[1], len(both))
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (better|worse|same)<", told)}
    figures.check(f"outcomes of {other}", str(sum(counts.values())), len(both))
    for row in rows(shown):
        path = path_of(row)
        mine, theirs = stored[path, first], stored[path, other]
        where = f"{path} on {other}"
        figures.ratio(where, row.partition("relative to A")[2], mine["time_ms"] / theirs["time_ms"])
        figures.time(where, row.partition('data-label="A"')[2], mine["time_ms"])
        figures.time(where, row.partition('data-label="B"')[2], theirs["time_ms"])


def check_attention(page, figures, stored):
    """How much longer, how much less, and what may be saved."""
    for kind in ("regressed", "behind"):
        for row in rows(said(page(f"/attention?kind={kind}"))):
            slug = re.search(r'href="/device-models/([^"]+)"', row)[1]
            result, where = stored[path_of(row), slug], f"{kind}: {path_of(row)} on {slug}"
            saved = [0.0]
            if "longer than" in row:
                figures.percent(where, row.partition("takes ")[2], result["slowdown"] - 1)
                saved.append(1 - 1 / result["slowdown"])
            if "less time" in row:
                figures.percent(where, row.partition("cuBLAS 13.0 takes ")[2], 1 - result["library"]["speedup"])
                saved.append(1 - result["library"]["speedup"])
            figures.percent(where, row.partition('data-label="May save"')[2], max(saved))


def check_problem(page, figures, stored, path: str):
    """Each device model's time and both gains."""
    shown = said(page(path)).split('id="published"')[0]
    for slug, body in re.findall(
        r'<tr[^>]*>\s*<th scope="row"><a href="/device-models/([^"]+)"(.*?)</tr>', shown, re.DOTALL
    ):
        result, where = stored.get((path, unquote(slug))), f"{path} on {slug}"
        if result is None:
            assert "not tuned" in body or "being computed" in body or "failed" in body
            continue
        figures.time(where, body, result["time_ms"])
        if result["library"]:
            figures.ratio(
                f"{where}, library", body.partition('data-label="Over the library"')[2], result["library"]["speedup"]
            )
        figures.ratio(
            f"{where}, default", body.partition('data-label="Over the default"')[2], result["gain_over_default"]
        )


@pytest.mark.timeout(900)
def test_no_figure_of_ten_device_models_differs_from_rest_or_arithmetic(client, page, ten):
    figures, stored = Figures(), cells(client)
    check_first_page(page, figures, stored)
    for model in ten_models.MODELS[1:]:
        check_compared(page, figures, stored, model.slug)
    check_attention(page, figures, stored)
    paths = sorted({path for path, _ in stored})
    for path in random.Random(4).sample(paths, PROBLEMS):
        check_problem(page, figures, stored, path)
    assert not figures.different, "\n".join(figures.different[:20])
    assert figures.looked_at >= LEAST_FIGURES, figures.looked_at
