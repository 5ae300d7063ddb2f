"""Why a study's winner is the best, as its page says it."""

import re

import pytest
from factories import TILED_16, TILED_32

from tilewright.kernels.space import Configuration
from tilewright.service.dashboard.formatting import TIMES
from tilewright.service.store import models

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
