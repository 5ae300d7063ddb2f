"""cublasLt by a library that notes its calls: what the heuristic is asked for, and what algorithms are named."""

from __future__ import annotations

import pytest
from noting_cublaslt import noting_library

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.library import cublaslt
from tilewright.tuner.library.cublas import LibraryError
from tilewright.tuner.library.names import is_launched
from tilewright.tuner.library.product import fused_product
from tilewright.tuner.loop.finals import NOT_VERIFIED

LINEAR = catalogue().get("linear")
SHAPE = {"m": 5, "n": 8, "k": 16}
PLACES = {"X": 4096, "W": 8192, "b": 12288, "Y": 16384}


@pytest.fixture
def library():
    with noting_library() as noting:
        yield noting


def product(dtype="bfloat16", activation="relu"):
    return fused_product(LINEAR.problem(SHAPE, dtype, {"activation": activation}), PLACES, {})


def test_a_name_says_version_and_algorithm_and_is_of_one_algorithm_alone(library):
    names = list(cublaslt.CublasLt().algorithms(product()))
    assert names == [
        "cuBLASLt 13.1.2 (algorithm 66, tile 20, stages 13, BF16)",
        "cuBLASLt 13.1.2 (algorithm 66, tile 20, stages 13, number 2, BF16)",
        "cuBLASLt 13.1.2 (algorithm 21, split-k 3, reduction 2, cluster 5, BF16)",
    ]
    assert all(is_launched(name) and cublaslt.why_not_here(name) == "" for name in names)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cuBLASLt 13.0.0 (algorithm 66, tile 20, BF16)", "cuBLASLt 13.1.2 is installed"),
        ("cuBLASLt 13.1.2 (heuristic 3 of 8, BF16)", "tune it again"),
        ("cuBLASLt 13.1.2 (algorithm 66, tile 20, FP32) + bias and activation kernel", "another kernel follows it"),
        (f"cuBLASLt 13.1.2 (algorithm 66, tile 20, FP32){NOT_VERIFIED}", "it was not verified"),
    ],
)
def test_a_call_of_another_version_or_without_its_algorithm_is_not_made(library, name, reason):
    assert reason in cublaslt.why_not_here(name)


def test_without_the_library_no_call_is_made(monkeypatch):
    def missing(name):
        raise LibraryError(f"{name} was not found")

    monkeypatch.setattr(cublaslt, "load", missing)
    cublaslt.version.cache_clear()
    assert cublaslt.why_not_here("cuBLASLt 13.1.2 (algorithm 66, FP32)") == "libcublasLt was not found"


@pytest.mark.parametrize(("dtype", "masks"), [("bfloat16", [2]), ("float32", [])])
def test_the_heuristic_is_asked_for_what_the_launcher_can_call(library, dtype, masks):
    cublaslt.CublasLt().algorithms(product(dtype))
    settings = [(attribute, value) for _, attribute, value, _ in library.of("cublasLtMatmulPreferenceSetAttribute")]
    assert [value for attribute, value in settings if attribute in {5, 6, 7, 8}] == [16] * 4
    assert [value for attribute, value in settings if attribute == 3] == masks
    assert [arguments[7] for arguments in library.of("cublasLtMatmulAlgoGetHeuristic")] == [32]


def test_a_call_has_the_problems_arrays_its_own_workspace_and_the_stream(library):
    third = cublaslt.CublasLt(stream=11, workspace=12).calls(product())[2]
    third.enqueue()
    [arguments] = library.of("cublasLtMatmul")
    assert (arguments[3], arguments[5]) == (PLACES["W"], PLACES["X"])
    assert [arguments[place] for place in (8, 10)] == [PLACES["Y"]] * 2
    assert arguments[-3:] == [12, 128, 11]
    set_on = library.of("cublasLtMatmulDescSetAttribute")
    assert {value for _, attribute, value, _ in set_on if attribute == 8} == {PLACES["b"]}
    assert {value for _, attribute, value, _ in set_on if attribute == 7} == {6}  # CUBLASLT_EPILOGUE_RELU_BIAS


@pytest.mark.parametrize("activation", ["gelu", "tanh", "silu", "sigmoid"])
def test_an_activation_that_the_library_has_not_is_no_part_of_a_call(activation):
    assert product(activation=activation) is None
