"""The page of a trial: its single times, and what it is held against."""

import re

import pytest
from factories import TILED_16, TILED_32

from tilewright.service.dashboard.charts.small import Histogram
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.dashboard.pages.trials import default_of
from tilewright.service.store import models

SAMPLES = [1.0, 1.0, 1.1, 1.1, 1.1, 1.2, 2.0]


@pytest.fixture
def path(commit):
    """Trial 1 of a study, with samples; trial 0 is the settled best."""

    def make(rows):
        first = rows.trial_of(rows.best(time_ms=0.55, configuration=TILED_32))
        study = rows.session.get_one(models.Study, first.study_id)
        job = rows.session.get_one(models.TuningJob, first.job_id)
        one = rows.trial(study, job, TILED_16.of("tiled", {"TILE_WIDTH": 8}), 1.1)
        one.warm_samples_ms, one.registers, one.spill_bytes, one.log = SAMPLES, 40, 2048, "ptxas info"
        one.compile_ms = 0.0
        return f"/studies/{study.id}/trials/1"

    return commit(make)


def cells(page: str, row: str) -> list[str]:
    """The text of the cells of that parameter's row."""
    found = re.search(rf'<th scope="row"><code>{row}</code></th>(.*?)</tr>', page)[1]
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", found)]


def test_it_is_held_against_best_and_default_parameter_by_parameter(page, path):
    shown = page(path)
    default = default_of("gemm", "tiled")["TILE_WIDTH"]
    is_other = " ≠" if default != 8 else ""
    assert cells(shown, "TILE_WIDTH")[:3] == ["8", "32 ≠", f"{default}{is_other}"]
    assert cells(shown, "TILE_WIDTH")[3]  # what it means
    assert re.search(r"Over the settled best</dt><dd><b class=\"figure\">(.*?)</b>", shown)[1] == f"{TIMES}0.50"


def test_it_says_resources_and_log_and_draws_the_single_times(page, path):
    shown = page(path)
    assert re.search(r"Registers per thread</dt><dd class=\"tabular\">40<", shown)
    assert "2.0 KiB" in shown
    assert "ptxas info" in shown
    assert re.search(r"Compiled in</dt><dd class=\"tabular\">from the cache<", shown)
    assert "7 launches, warm L2" in shown
    assert 'class="histogram"' in shown


def test_a_trial_of_a_kernel_that_is_not_here_is_shown_too(page, commit):
    def make(rows):
        trial = rows.trial_of(rows.best())
        study = rows.session.get_one(models.Study, trial.study_id)
        problem = rows.session.get_one(models.Problem, study.problem_id)
        rows.session.get_one(models.Kernel, problem.kernel_id).name = "of_somebody_else"
        return study.id

    assert "Only the median was recorded" in page(f"/studies/{commit(make)}/trials/0")


def test_the_bars_count_every_sample_and_the_median_is_where_it_belongs():
    drawn = Histogram.of(SAMPLES, 1.1, (1.0, 1.2))
    assert sum(count for _, _, count in drawn.counts) == len(SAMPLES)
    assert max(height for _, height, _ in drawn.bars) == drawn.height
    assert drawn.median_x == pytest.approx(0.1 * drawn.width, abs=0.1)
    assert drawn.interval_x == pytest.approx((0, 0.2 * drawn.width), abs=0.1)


def test_nothing_to_count_is_no_histogram():
    assert Histogram.of([], 1.0, None) is None
    assert Histogram.of([1.0], 1.0, None) is None
    assert Histogram.of([1.0, 1.0], 1.0, None) is None
    assert Histogram.of([1.0, 2.0], None, None) is None
