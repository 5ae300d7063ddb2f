"""Figures that pages show with ten device models, each held against REST or computed anew from what REST says."""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import unquote

import pytest
import ten_models
import three_models
from factories import H100, H200, SHAPE, TILED_16, TILED_32, Rows
from shown_matrix import SQUARE, shape

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages import results
from tilewright.service.operations.transaction import transaction
from tilewright.service.store import models
from tilewright.service.store.models import JobState

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


@pytest.mark.exhaustive
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


US = "\N{NO-BREAK SPACE}µs"


def test_a_skewed_interval_is_shown_by_its_ends(page, commit):
    def make(rows):
        best = rows.best(time_ms=0.018)
        best.ci_low_ms, best.ci_high_ms = 0.0179, 0.018 * 1.376

    commit(make)
    shown = page("/results")
    assert f"17.9 to 24.8{US}" in shown
    assert "±" not in shown


def test_worst_ratio_first_on_a_chosen_model_is_that_of_its_own_cells(page, commit):
    def make(rows):
        rows.best(SQUARE, 1.0, library_ms=2.0, model=H200)
        rows.best(SQUARE, 1.0, library_ms=0.5, model=H100)
        rows.best(SQUARE | {"m": 256}, 1.0, library_ms=1.5, model=H200)

    commit(make)
    shown = page("/?order=ratio&device_model=nvidia-h200")
    assert shown.index(shape(256, 512, 512)) < shown.index(shape(512, 512, 512))


def test_newest_first_on_a_chosen_model_is_that_of_its_own_cells(page, commit):
    def make(rows):
        for sizes, model, day in ((SQUARE, H200, 1), (SQUARE, H100, 9), (SQUARE | {"m": 256}, H200, 5)):
            rows.best(sizes, model=model).verified_at = datetime(2026, 11, day, tzinfo=UTC)

    commit(make)
    shown = page("/?order=age&device_model=nvidia-h200")
    assert shown.index(shape(256, 512, 512)) < shown.index(shape(512, 512, 512))


def test_the_roofline_says_how_many_of_all_results_it_draws(page, commit, monkeypatch):
    monkeypatch.setattr(results, "DRAWN_RESULTS", 2)
    commit(lambda rows: [rows.best(SQUARE | {"m": m}) for m in (64, 128, 256)])
    assert "the newest 2 of 3 results" in page("/device-models/nvidia-h200")


def test_more_than_the_roof_is_explained_where_it_stands(page, commit):
    def make(rows):
        best = rows.best()
        best.roof_ratio = 1.14
        return rows.trial_of(best).study_id

    study_id = commit(make)
    for path in ("/results", f"/studies/{study_id}"):
        assert re.search(r"114\s%(</b>|<br>)? <small[^>]*>above it: from the cache", page(path))


def test_an_import_is_no_job_that_took_no_time(page, commit):
    def make(rows):
        job = rows.session.get_one(models.TuningJob, rows.best(time_ms=0.5).job_id)
        job.sampler, job.result = "import", {"best": {"time_ms": 0.5}, "gain_over_default": 1.26}
        job.started_at = job.finished_at = datetime.now(UTC)
        return job.id

    job_id = commit(make)
    shown = page("/jobs")
    assert "↧ imported" in shown
    assert "0.0 s" not in shown
    assert "Result as it was imported" in page(f"/jobs/{job_id}")


def test_a_cancelled_job_has_no_result_of_finals(page, commit):
    def make(rows):
        study, problem, device = rows.study()
        job = rows.job(problem, device, study, JobState.CANCELLED)
        job.result = {"best": None, "stopped_by": "cancelled", "ties": 0}
        rows.trial(study, job, TILED_16, 0.2)
        return job.id

    assert "Result of the finals" not in page(f"/jobs/{commit(make)}")


def test_the_settled_time_is_the_large_one(page, commit):
    """A trial may have been faster by luck than the winner was in the finals."""

    def make(rows):
        best = rows.best(time_ms=0.179)
        trial = rows.trial_of(best)
        trial.time_ms = 0.151
        job = rows.session.get_one(models.TuningJob, best.job_id)
        job.result = {"best": {"time_ms": 0.179}, "gain_over_default": 2.0, "ties": 0}
        return job.id

    shown = page(f"/jobs/{commit(make)}")
    assert re.findall(r'class="figure">([^<]*)', shown) == [f"179{US}"]
    assert f"151{US}" in shown


@pytest.mark.parametrize(
    ("bounds", "text"), [((0.9, 1.2), f"900 to 1,200{US}"), ((2.0, 2.5), "2.00 to 2.50\N{NO-BREAK SPACE}ms")]
)
def test_an_interval_has_one_unit(bounds, text):
    assert formatting.interval(bounds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1024.0 KiB"),
        (2**20, "1.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**44, "16384.0 GiB"),
    ],
)
def test_a_size_changes_its_unit_at_each_1024(size, text):
    assert formatting.binary_size(size) == text


OF_BEST = ("gflops", "gb_per_s", "roof_ratio", "default_ms", "slowest_ms", "library_ms", "bound_ratio")
OF_TRIAL = ("occupancy", "registers", "shared_bytes", "gflops", "gb_per_s", "compile_ms", "clock_mhz", "bound_ratio")
OF_MODEL = ("datasheet_gflops", "datasheet_gb_per_s")
LISTS = (
    "/?kernel=gemm",
    "/?kernel=gemm&colour=roof",
    "/results",
    "/kernels/gemm",
    "/device-models/nvidia-h200",
    "/jobs",
)


@pytest.fixture
def lacking(commit):
    """The addresses of the pages of one study for each figure that is missing, and of one without any."""

    def make(rows):
        for number, missing in enumerate([{one} for one in (*OF_BEST, *OF_TRIAL)] + [{*OF_BEST, *OF_TRIAL}]):
            shape = SHAPE | {"m": 100 + number}
            best = rows.best(shape, library_ms=1.5)
            trial = rows.trial_of(best)
            best.roof_ratio = best.bound_ratio = trial.occupancy = trial.bound_ratio = 0.5
            best.gflops, trial.gflops, best.gb_per_s, trial.gb_per_s = 100.0, 100.0, 3_600.0, 3_600.0
            trial.registers = trial.shared_bytes = trial.compile_ms = trial.clock_mhz = 64
            for name in missing & {*OF_BEST}:
                setattr(best, name, None)
            for name in missing & {*OF_TRIAL}:
                setattr(trial, name, None)
            if "library_ms" in missing:
                best.library_name = best.library_faster = None
            study = rows.session.get_one(models.Study, trial.study_id)
            rows.trial(study, rows.session.get_one(models.TuningJob, best.job_id), TILED_32, 2.0)
            yield f"/studies/{study.id}"
            yield f"/studies/{study.id}/trials/{trial.number}"
            yield f"/kernels/gemm/problem?shape=m={shape['m']},n={shape['n']},k={shape['k']}"

    return commit(lambda rows: list(make(rows)))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("known", [OF_MODEL, OF_MODEL[:1], OF_MODEL[1:], ()])
def test_pages_show_what_is_known(page, lacking, commit, known):
    figures = {"datasheet_gflops": H200.datasheet_gflops, "datasheet_gb_per_s": H200.datasheet_gb_per_s}

    def change(rows):
        (model,) = rows.session.query(models.DeviceModel).filter_by(slug="nvidia-h200")
        model.details = {**model.details, "datasheet_gflops": {}, "datasheet_gb_per_s": None}
        model.details |= {name: figures[name] for name in known}

    commit(change)
    for path in (*(lacking if known == OF_MODEL else lacking[:6]), *LISTS):
        text = re.sub(r"<[^>]+>|<script.*?</script>", " ", page(path), flags=re.DOTALL)
        assert not re.search(r"\b(None|nan|inf|NaN)\b", text), path
