from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def counters(benchmark_module):
    return benchmark_module("counters")


def test_counters_are_read_from_the_profilers_page(counters):
    page = (
        "==PROF== Connected to process 7\n"
        '"ID","gpu__time_duration.sum","smsp__issue_active.avg.pct_of_peak_sustained_active"\n'
        '"","ns","%"\n'
        '"0","13,248","48.60"\n'
    )
    found = counters.read_counters(page)
    assert found["time"] == "13,248 ns"
    assert found["issue slots in use (%)"] == "48.60"
    assert found["waves"] == "not there"


def test_a_profiler_that_profiled_nothing_ends_the_program(counters):
    with pytest.raises(SystemExit, match="No kernels were profiled"):
        counters.read_counters("==WARNING== No kernels were profiled.\n")
