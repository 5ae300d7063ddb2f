from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

SQUARES = {(size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)}
GEMV = {
    (4096, 8192),
    (4096, 4096),
    (16384, 16384),
    (1024, 65536),
    (32768, 1024),
    (4095, 8191),
    (100, 784),
    (1024, 1024),
}
LLAMA = {(6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336)}  # n and k of qkv, output, gate and down


@pytest.fixture(scope="module")
def suite(benchmark_module):
    return benchmark_module("kernel_table.suite").read_suite()


def shapes(suite, kernel, accuracy):
    return [tuple(e.shape.values()) for e in suite if (e.kernel, e.accuracy) == (kernel, accuracy)]


def test_every_arithmetic_has_its_rows_each_with_a_name_and_an_origin(suite):
    assert Counter((entry.kernel, entry.accuracy) for entry in suite) == {
        ("gemm", "fp32-fma"): 24,
        ("gemm", "fp32"): 24,
        ("gemv", "fp32-fma"): 8,
        ("linear", "fp32"): 11,
        ("gemm", "tf32"): 1,
        ("gemm", "fp64-fma"): 5,
    }
    assert len({entry.row for entry in suite}) == len(suite)
    assert all(entry.name and entry.origin for entry in suite)


def test_every_row_is_a_problem_and_no_two_are_the_same(suite):
    assert len({entry.problem.hash for entry in suite}) == len(suite)
    assert all(dict(entry.problem.shape) == entry.shape for entry in suite)
    assert all(entry.problem.dtype == entry.dtype for entry in suite)


def test_the_shapes_are_those_that_were_asked_for(suite):
    others = {(32, 32, 65536), (8192, 8192, 64), (64, 4096, 4096), (256, 100, 784), (1, 14336, 4096)}
    odd = {(1000, 1000, 1000), (1023, 1025, 1027), (4097, 4095, 513)}
    llama = {(tokens, *sizes) for tokens in (16, 2048) for sizes in LLAMA}
    resnet = {(100352, 64, 576), (1568, 512, 4608)}
    for accuracy in ("fp32-fma", "fp32"):
        assert set(shapes(suite, "gemm", accuracy)) == SQUARES | others | odd | llama | resnet
    assert set(shapes(suite, "gemv", "fp32-fma")) == GEMV
    assert set(shapes(suite, "linear", "fp32")) == llama | resnet | {(256, 100, 784)}
    assert shapes(suite, "gemm", "tf32") == [(4096, 4096, 4096)]


def test_weights_are_the_transposed_second_factor(suite):
    transposed = {entry.name for entry in suite if entry.options.get("trans_b")}
    assert transposed == {e.name for e in suite if e.name.startswith(("llama-", "resnet-"))}


def test_the_large_cubes_are_timed_at_sustained_clocks_where_that_is_asked_for(suite):
    assert [entry.row for entry in suite if entry.sustained] == [
        "square-4096/fp32",
        "square-8192/fp32",
        "square-4096/tf32",
    ]


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
