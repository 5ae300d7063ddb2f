from __future__ import annotations

import json

import pytest

from tilewright.tuner.cpu import CpuDevice
from tilewright.tuner.tune import Budget

HEAD = {
    "kernel": "gemm",
    "dtype": "float32",
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
        "gflops": 68719.0,
        "gb_per_s": 100.0,
        "bytes_moved": 2 * 10**8,
        "percent_of_roof": 102.6,
        "trials": 300,
    }
    return row | changed


def gemv(name, speedup, **changed):
    shape = {"m": 16384, "n": 16384}
    bandwidth = {"read_gb_per_s": 4500.0, "datasheet_gb_per_s": 4800.0}
    facts = {"kernel": "gemv", "shape": shape, "l2": "cold", "bytes_moved": 10**9, "bandwidth": bandwidth}
    return measured(name, speedup, options={"beta_zero": True}, **facts | changed)


@pytest.fixture(scope="module")
def kernels(benchmark_module):
    return benchmark_module("kernels")


@pytest.fixture(scope="module")
def report(benchmark_module):
    return benchmark_module("kernel_report")


def verdicts(report, rows, *, complete=True):
    return {goal.text: goal.met for goal in report.goals(rows, complete=complete)}


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


def test_rows_keep_the_suites_order_and_replace_their_former_selves(kernels):
    rows = []
    for name, speedup in (("c", 1.0), ("a", 1.1), ("gone", 1.0), ("a", 1.2)):
        rows = kernels.with_row(rows, measured(name, speedup), ["a", "b", "c"])
    assert [(row["name"], row["speedup"]) for row in rows] == [("a", 1.2), ("c", 1.0)]


def test_a_document_is_read_as_it_was_written(kernels, tmp_path):
    path = tmp_path / "deep" / "kernels.json"
    assert kernels.read_document(path) == {"rows": []}
    document = {"rows": [measured("a", 1.5)]}
    kernels.write_document(path, document)
    assert kernels.read_document(path) == document
    assert [p.name for p in path.parent.iterdir()] == ["kernels.json"]


def test_entries_are_chosen_by_name_or_kernel(kernels, benchmark_module):
    suite = benchmark_module("suite").read_suite()
    assert kernels.select(suite, []) == suite
    assert [e.name for e in kernels.select(suite, ["square-512"])] == ["square-512"]
    assert len(kernels.select(suite, ["gemv", "square-512"])) == 9
    with pytest.raises(SystemExit, match="square-513"):
        kernels.select(suite, ["square-513"])


def test_the_table_has_a_line_a_row_and_a_failure_says_why(report):
    failed = HEAD | {"name": "b", "reason": "OutOfMemoryError: 3 | 4\nGB"}
    lines = report.table([measured("a", 1.234), failed]).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert "4096, 4096, 4096 (trans_b)" in lines[2]
    assert "1.234 [1.232, 1.236]" in lines[2]
    assert "OutOfMemoryError: 3 / 4 GB" in lines[3]


def test_means_are_geometric_and_count_what_is_missing(report):
    rows = [measured("a", 1.0), measured("b", 1.21), HEAD | {"name": "c", "reason": "none"}]
    assert report.means(rows)[0] == "gemm float32, warm L2: geometric mean x1.100 of 2 of 3"


@pytest.mark.parametrize(
    ("speedups", "mean_met", "none_slower"),
    [((1.2, 1.1), True, True), ((1.2, 0.99), False, True), ((1.5, 0.97), True, False)],
)
def test_the_goals_of_gemm(report, speedups, mean_met, none_slower):
    found = verdicts(report, [measured(str(i), speedup) for i, speedup in enumerate(speedups)])
    assert found["gemm: geometric mean >= 1.10"] is mean_met
    assert found["gemm: none below 0.98 and significantly slower"] is none_slower
    assert found["gemm: >= 1.00 at 4096 cubed"] is True
    assert found["gemm: >= 1.00 at 8192 cubed"] is None


def test_slower_within_the_noise_is_not_significant(report):
    assert verdicts(report, [measured("a", 0.97, width=0.04)])["gemm: none below 0.98 and significantly slower"] is True


def test_no_goal_over_all_rows_is_met_while_rows_are_missing(report):
    goal = "gemm: geometric mean >= 1.10"
    assert verdicts(report, [measured("a", 1.5)], complete=False)[goal] is None
    assert verdicts(report, [measured("a", 1.5), HEAD | {"name": "b", "reason": "x"}])[goal] is None


@pytest.mark.parametrize(("gb_per_s", "met"), [(4275.0, True), (4274.0, False)])
def test_gemvs_bandwidth_is_held_against_the_read_of_the_same_run(report, gb_per_s, met):
    found = verdicts(report, [gemv("a", 1.2, gb_per_s=gb_per_s)])
    assert found["gemv: (16384, 16384) >= 95 % of the read bandwidth of the same run"] is met


def test_the_report_names_the_rows_that_are_missing(report):
    text = report.report({"rows": [measured("a", 1.2), gemv("v", 0.9)]}, ["a", "b", "v"])
    assert text.endswith("Rows missing: b")
    assert "MISSED: gemv: none significantly slower: v 0.900" in text


def test_an_entry_becomes_a_row_on_a_real_device(benchmark_module):
    entry = benchmark_module("suite").Entry("tiny", "gemv", {"m": 8, "n": 16}, {}, "a test")
    rows = benchmark_module("kernel_rows")
    row = rows.measure(CpuDevice(), entry, "float64", Budget(trials=2))
    assert "reason" not in row
    assert (row["trials"], row["accuracy"], row["l2"]) == (2, "fp64-fma", "cold")
    assert row["time_ms"] == row["cold"]["time_ms"]
    assert row["ci_ms"][0] <= row["time_ms"] <= row["ci_ms"][1]
    assert row["bound_ratio"] < 2
    assert json.loads(json.dumps(row)) == row
    assert set(benchmark_module("kernels").SAME) <= set(row)
