"""Figures and words that once misled their readers."""

import re
from datetime import UTC, datetime

import pytest
from factories import H100, H200, TILED_16
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
