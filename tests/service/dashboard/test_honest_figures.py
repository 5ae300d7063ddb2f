"""Figures and words that once misled their readers; figures that are missing, told as such."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from factories import H100, H200, SHAPE, TILED_16, TILED_32
from shown_matrix import SQUARE, shape

from tilewright.service.dashboard import formatting
from tilewright.service.dashboard.pages import results
from tilewright.service.store import models
from tilewright.service.store.models import JobState

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
