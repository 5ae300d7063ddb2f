from __future__ import annotations

from types import SimpleNamespace

import pytest


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
