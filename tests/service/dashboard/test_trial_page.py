"""The page of a trial: its single times, what it is held against; why a winner is the best."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from factories import TILED_16, TILED_32

from tilewright.kernels.space import Configuration
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


@pytest.mark.parametrize("pruned", [False, True])
def test_a_trials_page_says_whether_its_single_times_were_pruned(commit, page, pruned):
    def make(rows):
        trial = rows.trial_of(rows.best())
        if pruned:
            trial.samples_pruned_at = datetime.now(UTC) - timedelta(days=2)
        return trial.study_id, trial.number

    study_id, number = commit(make)
    shown = page(f"/studies/{study_id}/trials/{number}")
    assert ("Single times were deleted" in shown) is pruned


WINNER = {"BLOCK_X": 32, "BLOCK_Y": 8}


def naive(**changed) -> Configuration:
    return Configuration.of("naive", WINNER | changed)


@pytest.fixture
def shown(page, commit):
    """The page of a study with finals of two, and trials around its winner."""

    def make(rows):
        best = rows.best(time_ms=1.0, library_ms=1.5, configuration=naive())
        best.gflops, best.gb_per_s = 100.0, 3_600.0
        trial = rows.trial_of(best)
        study, job = (
            rows.session.get_one(models.Study, trial.study_id),
            rows.session.get_one(models.TuningJob, best.job_id),
        )
        for configuration, time_ms in (
            (naive(BLOCK_X=16), 1.2),
            (naive(BLOCK_X=8), 1.9),
            (naive(BLOCK_X=64), 1.1),
            (naive(BLOCK_Y=4), 1.3),
            (naive(BLOCK_X=64, BLOCK_Y=4), 5.0),
            (TILED_16, 7.0),
        ):
            rows.trial(study, job, configuration, time_ms)
        job.result = {
            "best": {"time_ms": 1.0},
            "finalists": [
                {"configuration": naive().as_json(), "time_ms": 1.0, "ci_ms": [0.99, 1.01], "ties": False},
                {"configuration": TILED_32.as_json(), "time_ms": 1.05, "ci_ms": [1.04, 1.08], "ties": False},
            ],
        }
        return trial.study_id

    return page(f"/studies/{commit(make)}").replace("\N{NO-BREAK SPACE}", " ")


def test_three_sentences_say_what_won_by_how_much_and_what_limits_it(shown):
    sentences = re.findall(r"<li>(.*?)</li>", shown.split('class="reasons-why"')[1].split("</ul>")[0])
    assert sentences == [
        f"naive won with 1.00 ms: {TIMES}2.00 as fast as the default and {TIMES}1.50 as fast as cuBLAS 13.0.",
        "The next finalist takes 5.0 % longer; its own 95 % interval is 2.0 % wide.",
        (
            "It reaches 75 % of the memory&#39;s bandwidth and 0.15 % of the peak of the arithmetic units: "
            "memory limits it."
        ),
    ]


def test_finalists_have_their_intervals(shown):
    table = shown.split('aria-label="Finalists"')[1].split("</table>")[0]
    assert "1.04 to 1.08 ms" in table
    assert table.count("<circle") == 2


def test_neighbours_are_the_nearest_values_with_all_else_alike(shown):
    table = shown.split('aria-label="One step away"')[1].split("</table>")[0]
    assert "smaller is 20 % slower, larger is 10 % slower" in table
    assert "smaller is 30 % slower" in table
    assert "1.90 ms" not in table  # two steps away
    assert "5.00 ms" not in table  # two parameters


def test_tensor_cores_are_not_held_against_the_peak_of_plain_arithmetic(page, commit):
    wide = {"BLOCKS": 132, "TILE_M": 64, "TILE_N": 128, "CLUSTER": 1, "SPLIT_K": 1, "PROMOTE_K": 128, "GROUP_M": 8}

    def make(rows):
        best = rows.best(configuration=Configuration.of("tensor3xfp16_sm90", wide))
        best.gflops, best.gb_per_s = 50_000.0, 40.0
        return rows.trial_of(best).study_id

    assert "what its arithmetic could reach is not known" in page(f"/studies/{commit(make)}")
