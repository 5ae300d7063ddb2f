"""The table of kernels beside the library, and the suite of its shapes."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tilewright.tuner.devices.cpu.device import CpuDevice
from tilewright.tuner.devices.device import Bench
from tilewright.tuner.loop.tune import Budget
from tilewright.tuner.outcome import Verification

HEAD = {
    "kernel": "gemm",
    "dtype": "float32",
    "accuracy": "fp32-fma",
    "options": {"trans_b": True, "beta_zero": True},
    "shape": {"m": 4096, "n": 4096, "k": 4096},
    "budget": {"trials": 300, "seconds": 15.0},
    "source_hash": "a",
    "environment_hash": "b",
    "device_model": "nvidia-h200",
}


def measured(name, speedup, *, width=0.002, **changed):
    times = {
        "time_ms": 2.0,
        "ci_ms": [1.99, 2.01],
        "library_ms": 2.0 * speedup,
        "library_ci_ms": [1.9, 2.1],
        "speedup": speedup,
        "speedup_ci": [speedup - width, speedup + width],
    }
    row = {
        **HEAD,
        "name": name,
        "variant": "register",
        "l2": "warm",
        **times,
        "warm": times,
        "cold": times,
        "library": "cuBLAS 13.1.0 (cublasSgemm, FP32)",
        "bound_ratio": 0.1,
        "bound_ratios": {"normal": 0.05, "scaled": 0.1},
        "library_bound_ratio": 0.3,
        "library_bound_ratios": {"normal": 0.06, "scaled": 0.3},
        "gflops": 68719.0,
        "gb_per_s": 100.0,
        "bytes_moved": 2 * 10**8,
        "percent_of_roof": 102.6,
        "trials": 300,
    }
    return row | changed


@pytest.fixture(scope="module")
def kernels(benchmark_module):
    return benchmark_module("kernels")


@pytest.fixture(scope="module")
def report(benchmark_module):
    return benchmark_module("kernel_table.report")


def test_a_row_is_kept_only_where_a_new_one_would_repeat_it(kernels):
    head = HEAD | {"name": "x"}
    rows = [measured("x", 1.1)]
    assert kernels.is_fresh(rows, head)
    for key, value in {
        "source_hash": "c",
        "budget": {"trials": 5, "seconds": 15.0},
        "environment_hash": "d",
        "options": {},
    }.items():
        assert not kernels.is_fresh(rows, head | {key: value})
    assert not kernels.is_fresh([HEAD | {"name": "x", "reason": "DeviceLostError"}], head)
    assert not kernels.is_fresh(rows, head | {"name": "y"})


def test_a_shape_of_long_launches_gets_a_longer_search(benchmark_module, kernels):
    suite = {entry.row: entry for entry in benchmark_module("kernel_table.suite").read_suite()}
    model = replace(CpuDevice().model, datasheet_gflops={"float32": 50_000.0}, datasheet_gb_per_s=4000.0)
    words = kernels.parse(["--seconds", "8", "--trials", "70", "--launches", "1000"])

    def seconds(row, model=model):
        budget = kernels.budget_of(suite[row], model, words)
        assert budget.trials == 70
        return budget.seconds

    assert seconds("square-8192/fp32") == pytest.approx(1000 * 2 * 8192**3 / 50e12, abs=0.1)
    assert seconds("square-4096/fp32-fma") == seconds("gemv-4096x8192") == 8
    assert seconds("square-8192/fp32", replace(model, datasheet_gflops={})) == 8


def test_rows_keep_the_suites_order_and_replace_their_former_selves(kernels):
    rows = []
    for name, speedup in (("c", 1.0), ("a", 1.1), ("gone", 1.0), ("a", 1.2)):
        rows = kernels.with_row(rows, measured(name, speedup), ["a", "b", "c"])
    assert [(row["name"], row["speedup"]) for row in rows] == [("a", 1.2), ("c", 1.0)]


def test_a_document_is_read_as_it_was_written(kernels, tmp_path):
    path = tmp_path / "deep" / "kernels.json"
    assert kernels.read(path) == {"rows": []}
    document = {"rows": [measured("a", 1.5)]}
    kernels.write(path, document)
    assert kernels.read(path) == document
    assert [p.name for p in path.parent.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 234),
        (["square-512"], 3),
        (["square-512/fp32"], 1),
        (["gemv", "square-512"], 11),
        (["gemm+fp32"], 31),
        (["float64", "gemm+tf32"], 6),
    ],
)
def test_rows_are_chosen_by_name_kernel_or_arithmetic(kernels, benchmark_module, words, count):
    chosen = kernels.select(benchmark_module("kernel_table.suite").read_suite(), words)
    assert len({entry.row for entry in chosen}) == len(chosen) == count


@pytest.mark.parametrize("word", ["square-513", "gemv+tf32"])
def test_a_word_that_names_no_row_ends_the_program(kernels, benchmark_module, word):
    with pytest.raises(SystemExit, match=f"these are not rows of the suite: {re.escape(word)}"):
        kernels.select(benchmark_module("kernel_table.suite").read_suite(), [word])


def test_the_table_has_a_line_a_row_and_a_failure_says_why(report):
    failed = HEAD | {"name": "b", "reason": "OutOfMemoryError: 3 | 4\nGB"}
    lines = report.table([measured("a", 1.234), failed]).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert "4096, 4096, 4096 (trans_b)" in lines[2]
    assert "1.234 [1.232, 1.236]" in lines[2]
    assert "OutOfMemoryError: 3 / 4 GB" in lines[3]


def test_batches_have_a_mean_of_their_own(report):
    shape = {"m": 64, "n": 32, "k": 16, "batch": 9}
    pair = [measured("pair/fp32", 2.5, accuracy="fp32", shape=shape)]
    pair.append(measured("pair-view/fp32", 2.4, accuracy="fp32", shape=shape | {"lda": 24}))
    rows = [measured("a", 1.0, accuracy="fp32"), *pair]
    assert "gemm batched fp32, warm L2: geometric mean x2.449 of 2 of 2" in report.means(rows)
    assert "9 x 64, 32, 16 (trans_b, lda 24)" in report.table(rows)


def test_means_are_geometric_and_count_what_is_missing(report):
    rows = [measured("a", 1.0), measured("b", 1.21), HEAD | {"name": "c", "reason": "none"}]
    assert report.means(rows)[0] == "gemm fp32-fma, warm L2: geometric mean x1.100 of 2 of 3"


def test_the_report_names_the_rows_that_are_missing(report):
    text = report.report({"rows": [measured("a", 1.2), measured("v", 0.9)]}, ["a", "b", "v"])
    assert text.endswith("Rows missing: b")


def split(name, speedup, **changed):
    return measured(name, speedup, accuracy="fp32", **changed)


def test_the_readme_shows_means_and_some_rows(benchmark_module, tmp_path):
    readme = benchmark_module("kernel_table.readme")
    document = {
        "rows": [
            measured("square-4096/fp32-fma", 1.1) | {"measured_at": "2026-11-20T12:00:00+00:00"},
            measured("square-256/fp32-fma", 1.21) | {"measured_at": "2026-11-21T12:00:00+00:00"},
            split("square-4096/fp32", 2.5) | {"measured_at": "2026-11-21T12:00:00+00:00"},
            HEAD | {"name": "square-512/fp32", "reason": "none"},
        ],
        "environment": {"driver": "580", "toolkit": "13.0"},
        "budget": {"trials": 5, "seconds": 6.0},
        "device_model": {"name": "NVIDIA H200"},
    }
    sections = readme.readme_sections(document)
    assert "| gemm | fp32-fma | 2 | 1.15 | 1.10 | 1.21 |" in sections["kernels"]
    assert "with the fastest call of cuBLAS 13.1.0" in sections["kernels"]
    assert "; 2026-11-20 to 2026-11-21. " in sections["kernels"]
    assert sections["kernel rows"].count("| 4096, 4096, 4096 (trans_b) |") == 2
    page, around = tmp_path / "README.md", "before\n<!-- {0}: made -->\n{1}<!-- /{0} -->\nafter\n"
    page.write_text("".join(around.format(name, "old\n") for name in sections))
    readme.put_sections(page, document)
    assert page.read_text() == "".join(around.format(*section) for section in sections.items())
    page.write_text("no markers\n")
    with pytest.raises(ValueError, match="has no section"):
        readme.put_sections(page, document)


def test_a_heated_row_is_timed_in_rounds_of_their_own_length(benchmark_module, monkeypatch):
    rows = benchmark_module("kernel_table.rows")
    monkeypatch.setattr(rows, "HEATED_MS", 8.0)
    asked = []

    class Timed:
        def sample(self, executable, l2, count):
            asked.append((executable, l2, count))
            return [executable] * count

    row = rows.sustained(Timed(), 2.0, 4.0)
    assert (row["time_ms"], row["library_ms"], row["speedup"]) == (2.0, 4.0, 2.0)
    assert {(executable, count) for executable, _, count in asked if count > rows.SAMPLES} == {(2.0, 4)}
    assert (
        sum(count * executable >= 8.0 for executable, _, count in asked if executable == 2.0) == rows.HEATED_ROUNDS + 1
    )


def test_at_sustained_clocks_what_is_nearly_the_fastest_can_win(benchmark_module, monkeypatch):
    rows = benchmark_module("kernel_table.rows")
    monkeypatch.setattr(rows, "HEATED_MS", 4.0)
    hot_ms = {"throttled": 1.4, "frugal": 1.2, "close": 1.3, "slow": 1.0}
    short_ms = {"throttled": 1.0, "frugal": 1.05, "close": 1.02, "slow": 1.5}
    asked = []

    class Hot(Bench):
        def compile(self, configuration):
            return configuration

        def sample(self, executable, l2, count):
            asked.append(executable)
            return [hot_ms[executable]] * count

        def verify(self, executable):
            return Verification(ratios.get(executable, 0.5), wrong=0)

        def close(self):
            pass

    ratios = {}
    trials = [SimpleNamespace(configuration=c, evaluation=SimpleNamespace(time_ms=t)) for c, t in short_ms.items()]
    trials.append(SimpleNamespace(configuration="failed", evaluation=SimpleNamespace(time_ms=None)))
    assert rows.heated_choice(Hot(), trials) == "frugal"
    ratios["frugal"] = math.inf  # what holds a NaN
    assert rows.heated_choice(Hot(), trials) == "close"
    ratios |= dict.fromkeys(hot_ms, math.inf)
    assert rows.heated_choice(Hot(), trials) is None
    ratios.clear()
    asked.clear()
    assert rows.heated_choice(Hot(), trials) == "frugal"
    assert set(asked) == {"throttled", "frugal", "close"}
    monkeypatch.setattr(rows, "HEATED_CANDIDATES", 2)
    assert rows.heated_choice(Hot(), trials) == "close"


@pytest.mark.in_turn(2)
def test_an_entry_becomes_a_row_on_a_real_device(benchmark_module):
    suite = benchmark_module("kernel_table.suite")
    entry = suite.Entry("tiny", "gemv", {"m": 8, "n": 16}, {}, "a test", dtype="float64")
    row = benchmark_module("kernel_table.rows").measure(CpuDevice(), entry, Budget(trials=2))
    assert "reason" not in row
    assert (row["trials"], row["accuracy"], row["l2"]) == (2, "fp64", "cold")
    assert row["time_ms"] == row["cold"]["time_ms"]
    assert row["ci_ms"][0] <= row["time_ms"] <= row["ci_ms"][1]
    assert row["bound_ratio"] == max(row["bound_ratios"].values()) < 2
    assert {"normal", "uniform", "nonfinite", "lines"} <= set(row["bound_ratios"])
    assert row["library_bound_ratio"] is None
    assert json.loads(json.dumps(row)) == row
    assert set(benchmark_module("kernels").SAME) <= set(row)


@pytest.fixture(scope="module")
def suite(benchmark_module):
    return benchmark_module("kernel_table.suite").read_suite()


def test_every_row_is_a_problem_with_a_name_and_an_origin_and_no_two_are_the_same(suite):
    assert len({entry.row for entry in suite}) == len(suite)
    assert all(entry.name and entry.origin for entry in suite)
    assert len({entry.problem.hash for entry in suite}) == len(suite)
    assert all(entry.problem.stated_shape == entry.shape for entry in suite)
    assert all(entry.problem.dtype == entry.dtype for entry in suite)


def test_the_source_hash_changes_with_the_kernels_own_sources_and_with_no_others(benchmark_module, tmp_path):
    module = benchmark_module("kernel_table.suite")

    def hash_of(**sources):
        return module.source_hash(SimpleNamespace(folder=tmp_path, source_hashes=sources))

    (tmp_path / "declaration.py").write_text("1")
    first = hash_of(naive="a", tiled="b")
    assert first == hash_of(tiled="b", naive="a")
    assert first != hash_of(naive="a", tiled="c")
    assert first != hash_of(naive="a", wpt="b")
    (tmp_path / "notes.txt").write_text("3")
    assert hash_of(naive="a", tiled="b") == first
    (tmp_path / "declaration.py").write_text("4")
    assert hash_of(naive="a", tiled="b") != first
