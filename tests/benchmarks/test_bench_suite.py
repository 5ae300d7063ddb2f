from __future__ import annotations

import itertools
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
BATCHES = {
    (512, 512, 128, 32),
    (512, 512, 128, 32, 256, 1024, 1024),
    (64, 64, 64, 512),
    (32, 32, 32, 1024),
    (128, 128, 64, 64),
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
        ("gemm", "fp32"): 24 + 2 + len(BATCHES),
        ("gemv", "fp32-fma"): 8,
        ("conv2d", "fp32"): 46,
        ("linear", "fp32"): 22,
        ("gemm", "tf32"): 1,
        ("gemm", "fp64"): 5,
        ("gemm", "bfloat16"): 24 + 5 * len(LLAMA) + 3,
        ("linear", "bfloat16"): 11,
        ("linear_gated", "bfloat16"): 5,
        ("linear_quantized", "bfloat16"): 3 * 2 * len(LLAMA),
    } | {
        (kernel, accuracy): 1
        for kernel in ("softmax", "rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
        for accuracy in ("bfloat16", "fp32-fma")
    }
    assert len({entry.row for entry in suite}) == len(suite)
    assert all(entry.name and entry.origin for entry in suite)


def test_every_row_is_a_problem_and_no_two_are_the_same(suite):
    assert len({entry.problem.hash for entry in suite}) == len(suite)
    assert all(entry.problem.stated_shape == entry.shape for entry in suite)
    assert all(entry.problem.dtype == entry.dtype for entry in suite)


def test_the_shapes_are_those_that_were_asked_for(suite):
    others = {(32, 32, 65536), (8192, 8192, 64), (64, 4096, 4096), (256, 100, 784), (1, 14336, 4096)}
    odd = {(1000, 1000, 1000), (1023, 1025, 1027), (4097, 4095, 513)}
    llama = {(tokens, *sizes) for tokens in (16, 2048) for sizes in LLAMA}
    resnet = {(100352, 64, 576), (1568, 512, 4608)}
    for accuracy, batches in (("fp32-fma", set()), ("fp32", BATCHES)):
        assert set(shapes(suite, "gemm", accuracy)) == batches | SQUARES | others | odd | llama | resnet
    assert set(shapes(suite, "gemv", "fp32-fma")) == GEMV
    assert set(shapes(suite, "linear", "fp32")) == llama | resnet | {(256, 100, 784)}
    assert shapes(suite, "gemm", "tf32") == [(4096, 4096, 4096)]
    decoded = {(tokens, *sizes) for tokens in (1, 4, 8, 16, 32, 64) for sizes in LLAMA}
    assert decoded <= set(shapes(suite, "gemm", "bfloat16"))
    quantised = {(tokens, *sizes) for tokens in (1, 16, 64) for sizes in LLAMA}
    assert quantised == set(shapes(suite, "linear_quantized", "bfloat16"))


def test_weights_are_the_transposed_second_factor(suite):
    transposed = {entry.name for entry in suite if entry.options.get("trans_b")}
    assert transposed == {e.name for e in suite if e.name.startswith(("llama-", "resnet-"))}


def test_the_large_cubes_are_timed_at_sustained_clocks_where_that_is_asked_for(suite):
    assert [entry.row for entry in suite if entry.sustained] == [
        "square-4096/fp32",
        "square-8192/fp32",
        "square-4096-packed/fp32",
        "square-8192-packed/fp32",
        "square-4096/tf32",
        "square-4096/bfloat16",
        "square-8192/bfloat16",
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


def test_convolutions_are_those_of_resnet_50_at_three_batches(suite):
    layers = {"conv2": (56, 64), "conv3": (28, 128), "conv4": (14, 256), "conv5": (7, 512)}
    by_name = {entry.name: entry.problem.shape for entry in suite if entry.kernel == "conv2d"}
    for (layer, (pixels, channels)), batch in itertools.product(layers.items(), (1, 8, 32)):
        square, reduce, expand = (by_name[f"{layer}-{part}-{batch}"] for part in ("3x3", "reduce", "expand"))
        assert {shape["batch"] for shape in (square, reduce, expand)} == {batch}
        assert {shape["width"] for shape in (square, reduce, expand)} == {pixels}
        assert (square["channels"], square["filters"], square["padding"]) == (channels, channels, 1)
        assert (reduce["channels"], expand["filters"]) == (4 * channels, 4 * channels)
