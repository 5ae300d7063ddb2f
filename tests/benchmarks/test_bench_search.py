import importlib.util
import json
import random

import numpy as np
import pytest

from tilewright.tuner.search.searcher import SAMPLERS

RESULTS = {  # of 96 points the best is THREADS=64 UNROLL=4 at 1 ms; the largest blocks fail
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "configuration": {"THREADS": threads, "UNROLL": unroll, "PAD": pad},
            "times": {"compilation": 1.0, "runtimes": [1 + 0.1 * abs(threads - 64) / 8 + 0.2 * abs(unroll - 4) + pad]},
            "invalidity": "runtime" if threads == 96 else "correct",
        }
        for threads in range(8, 104, 8)
        for unroll in (1, 2, 4, 8)
        for pad in (0, 1)
    ],
}


@pytest.fixture(scope="session")
def bench(benchmark_module):
    return benchmark_module("search")


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "made_T4.json"
    path.write_text(json.dumps(RESULTS), encoding="utf-8")
    return path


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_row_says_how_near_the_optimum_a_search_came(bench, recording, sampler):
    row = bench.row_of(bench.Task(recording, sampler, None, 4, 60))
    assert (row["space"], row["configurations"], row["repeats"]) == ("made_T4", 96, 4)
    assert list(row["fraction_at"]) == ["10", "25", "50"]
    fractions = list(row["fraction_at"].values())
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] <= fractions[-1] <= 1
    for mark, (low, high) in row["ci_at"].items():
        assert low <= row["fraction_at"][mark] <= high
    if sampler == SAMPLERS[0]:
        assert fractions[-1] > 0.9


def test_a_prior_is_a_search_of_another_recording(bench, recording):
    cold = bench.row_of(bench.Task(recording, SAMPLERS[0], None, 4, 25))
    warm = bench.row_of(bench.Task(recording, SAMPLERS[0], recording, 4, 25))
    assert warm["prior"] == "made_T4"
    assert warm["fraction_at"]["10"] > cold["fraction_at"]["10"]


@pytest.mark.skipif(not importlib.util.find_spec("kernel_tuner"), reason="Kernel Tuner is not installed")
def test_kernel_tuner_searches_the_same_numbers(bench, recording):
    for strategy in bench.STRATEGIES:
        row = bench.row_of(bench.Task(recording, bench.KERNEL_TUNER + strategy, None, 2, 50))
        assert 0 < row["fraction_at"]["50"] <= 1


@pytest.mark.skipif(not importlib.util.find_spec("kernel_tuner"), reason="Kernel Tuner is not installed")
def test_repeats_are_what_the_public_function_would_find(bench, benchmark_module, recording, tmp_path):
    replay = benchmark_module("searches.replay")
    on = replay.recorded(recording)
    for strategy in ("adaptive_tabu_greywolf", "genetic_algorithm", "hybrid_vndx"):
        replay.search_kernel_tuner(on, strategy, 1, 40)  # leaves nothing behind for the next repeat
        run = replay.search_kernel_tuner(on, strategy, 2, 40)
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002 - Kernel Tuner draws from the global generators
        rows = replay.tune_by_kernel_tuner(on, strategy, tmp_path, {"max_fevals": 40})
        assert run.best_ms == replay.best_so_far(rows, ["PAD", "THREADS", "UNROLL"])
    every = replay.tune_by_kernel_tuner(on, "brute_force", tmp_path, {})
    assert len(every) == 96  # what failed is in its space too


def test_a_median_that_most_repeats_do_not_reach_is_none(bench):
    at = np.array([[0.5, 0.96, 1.0], [0.2, 0.3, 0.4], [0.1, 0.2, 0.99]])
    assert bench.median_to(at, 0.95) == 3
    assert bench.median_to(at, 0.995) is None


def test_a_lead_is_over_the_best_of_the_others_at_each_mark(bench):
    def row(sampler, fraction, prior=None):
        numbers = {"fraction_at": {"10": fraction}, "sd_at": {"10": 0.1}, "repeats": 100}
        return {"space": "made", "sampler": sampler, "prior": prior, **numbers}

    rows = [row(SAMPLERS[0], 0.9), row(SAMPLERS[0], 0.95, "other"), row("kernel_tuner:a", 0.8), row("tpe", 0.99)]
    cold, warm = bench.leads([*rows, row("kernel_tuner:b", 0.85)])
    assert cold["at"]["10"] == {"over": "kernel_tuner:b", "by": 0.05, "ci": [0.0223, 0.0777]}
    assert (warm["prior"], warm["at"]["10"]["over"], warm["at"]["10"]["by"]) == ("other", SAMPLERS[0], 0.05)


def test_the_recordings_of_the_project_are_replayed_too(bench):
    own = sorted(path.name for path in bench.OWN_RECORDINGS.iterdir())
    assert len(own) == 2
    assert all(len(bench.recorded(bench.OWN_RECORDINGS / name).evaluations) == 5000 for name in own)


def test_a_recording_that_cannot_be_read_is_named_and_the_others_have_their_rows(
    bench, recording, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(bench, "OWN_RECORDINGS", tmp_path / "none")
    bench.OWN_RECORDINGS.mkdir()
    (tmp_path / "torn.json").write_text("{", encoding="utf-8")
    out = tmp_path / "out" / "search.json"
    arguments = ["--trials", "10", "--repeats", "1", "--others", "1", "--processes", "1", "--samplers", "random"]
    monkeypatch.setattr("sys.argv", ["search.py", str(tmp_path), *arguments, "--out", str(out)])
    assert bench.main() == 1
    assert f"left out: {tmp_path / 'torn.json'}" in capsys.readouterr().err
    assert [row["space"] for row in json.loads(out.read_text(encoding="utf-8"))["rows"]] == ["made_T4"]


def test_the_file_is_taken_up_where_it_was_left(bench, recording, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "OWN_RECORDINGS", tmp_path / "none")
    bench.OWN_RECORDINGS.mkdir()
    out = tmp_path / "search.json"
    arguments = ["search.py", str(recording), "--out", str(out), "--trials", "10", "--repeats", "2", "--others", "1"]
    monkeypatch.setattr("sys.argv", [*arguments, "--processes", "1", "--samplers", "random"])
    bench.main()
    written = json.loads(out.read_text(encoding="utf-8"))
    assert [row["sampler"] for row in written["rows"]] == ["random"]
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", [*arguments, "--samplers", "random", "--resume"])
    bench.main()
    assert capsys.readouterr().out.startswith("0 of 1 rows to make")
    assert json.loads(out.read_text(encoding="utf-8"))["rows"] == written["rows"]
