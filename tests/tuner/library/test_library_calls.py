"""cublasLt by a noted that notes its calls: what the heuristic is asked for, and what algorithms are named."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from contracts.variant import needs_nvrtc
from noting_cublaslt import noting_library

from tilewright.kernels.catalogue import catalogue
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.compile.compiler import compile_nvrtc
from tilewright.tuner.errors import TrialFailure
from tilewright.tuner.library import choice as library_choice
from tilewright.tuner.library import cublas as library
from tilewright.tuner.library import cublaslt
from tilewright.tuner.library.choice import Candidate, fastest
from tilewright.tuner.library.cublas import LibraryCall, LibraryError, version_text
from tilewright.tuner.library.cublaslt import Heuristic
from tilewright.tuner.library.layer import WideWeights, widening_definitions, widening_source
from tilewright.tuner.library.names import is_launched
from tilewright.tuner.library.product import fused_product, product_of
from tilewright.tuner.loop.finals import NOT_VERIFIED
from tilewright.tuner.outcome import Outcome, Verification

FLAGS = (False, True)
VIEWS = {"batch": 3, "lda": 7, "stride_b": 0, "ldb": 9, "ldc": 30, "stride_c": 8}
PLACES = {"A": 1, "B": 2, "C": 3, "x": 4, "y": 5, "X": 6, "W": 7, "Y": 8}


def by_columns(flat, rows, columns, lead, start=0):
    """A column-major matrix of a library, as NumPy sees it."""
    return np.array([[flat[start + column * lead + row] for column in range(columns)] for row in range(rows)])


def factor(flats, operand, rows, columns, place=0):
    """The matrix of that place in the batch, as the product uses it."""
    stored = (columns, rows) if operand.transposed else (rows, columns)
    matrix = by_columns(flats[operand.address], *stored, operand.lead, place * operand.stride)
    return matrix.T if operand.transposed else matrix


def memory_of(kernel, problem, host):
    """Each array as it lies in memory, by its place."""
    layouts = {tensor.name: tensor.layout(problem) for tensor in kernel.tensors}
    return {PLACES[name]: layouts[name].memory_of(array) for name, array in host.items()}


def problems():
    gemm, gemv = catalogue().get("gemm"), catalogue().get("gemv")
    for shape, *flags in itertools.product([(5, 3, 4), (1, 3, 4), (5, 1, 4), (1, 1, 4)], FLAGS, FLAGS, FLAGS):
        options = dict(zip(("trans_a", "trans_b", "beta_zero"), flags, strict=True))
        yield gemm, gemm.problem(dict(zip("mnk", shape, strict=True)), "float64", options)
        if 1 not in shape:
            yield gemm, gemm.problem({**dict(zip("mnk", shape, strict=True)), **VIEWS}, "float64", options)
    names = [option.name for option in gemv.options]
    for values in itertools.product(FLAGS, repeat=len(names)):
        yield gemv, gemv.problem({"m": 5, "n": 3}, "float64", dict(zip(names, values, strict=True)))


@pytest.mark.parametrize(("kernel", "problem"), list(problems()), ids=lambda value: getattr(value, "canonical", ""))
def test_what_the_library_is_asked_for_is_the_problem(kernel, problem):
    host = random_arrays(kernel, problem, 1)
    scalars = scalar_values(kernel, problem)
    expected = kernel.reference(problem, host, scalars).value
    flats = memory_of(kernel, problem, host)
    product = product_of(problem, PLACES, scalars)
    matrices = []
    for place in range(product.batch):
        first = factor(flats, product.first, product.rows, product.depth, place)
        second = factor(flats, product.second, product.depth, product.columns, place)
        found = product.alpha * first @ second
        if product.beta:
            found += product.beta * factor(flats, product.out, product.rows, product.columns, place)
        matrices.append(found.T.reshape(-1))
    assert np.allclose(np.concatenate(matrices), expected.reshape(-1), rtol=1e-12)


def test_a_layer_begins_with_its_product():
    linear = catalogue().get("linear")
    problem = linear.problem({"m": 5, "n": 3, "k": 4}, "float64")
    host = random_arrays(linear, problem, 1)
    flats = {PLACES[name]: host[name].reshape(-1) for name in ("X", "W")}
    product = product_of(problem, PLACES, {})
    first = factor(flats, product.first, product.rows, product.depth)
    second = factor(flats, product.second, product.depth, product.columns)
    expected = linear.reference(problem, host, {}).value - host["b"]
    assert (product.alpha, product.beta, product.out.address) == (1.0, 0.0, PLACES["Y"])
    assert np.allclose((first @ second).T, expected, rtol=1e-12)


@needs_nvrtc
@pytest.mark.parametrize("weights", ["int8", "int4", "int4_zeros"])
def test_weights_of_few_bits_are_multiplied_in_16_instead(weights):
    kernel = catalogue().get("linear_quantized")
    problem = kernel.problem({"m": 5, "n": 3, "k": 256}, "bfloat16", {"weights": weights})
    product = product_of(problem, PLACES, {})
    assert (product.rows, product.columns, product.depth, product.precision) == (3, 5, 256, "BF16")
    assert (product.first.address, product.second.address) == (PLACES["W"], PLACES["X"])
    compile_nvrtc(widening_source(), widening_definitions(kernel, problem), "sm_90", "widen")
    named = WideWeights.named(LibraryCall("cuBLAS 13.1.0 (cublasGemmEx, BF16)", lambda: None))
    assert named.name == "cuBLAS 13.1.0 (cublasGemmEx, BF16), weights in 16 bits"
    assert not named.is_comparable


@pytest.mark.parametrize(
    ("dtype", "accuracy", "precision"),
    [
        ("float32", "fp32", "FP32"),
        ("float32", "fp32-fma", "FP32"),
        ("float32", "tf32", "TF32"),
        ("float64", "fp32", "FP64"),
        ("bfloat16", "fp32", "BF16"),
        ("float16", "fp32", "FP16"),
    ],
)
def test_the_library_computes_as_exactly_as_the_caller_asked(dtype, accuracy, precision):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 5, "n": 3, "k": 4}, dtype, {"accuracy": accuracy})
    assert product_of(problem, PLACES, scalar_values(gemm, problem)).precision == precision


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", 14), ("float16", 2)])
@pytest.mark.parametrize("output", ["same", "float32"])
@pytest.mark.parametrize("batch", [1, 3])
def test_factors_of_half_types_are_named_as_such_and_sums_and_scalars_are_float32(dtype, code, output, batch):
    gemm = catalogue().get("gemm")
    problem = gemm.problem({"m": 5, "n": 3, "k": 4, "batch": batch}, dtype, {"output": output})
    product = product_of(problem, PLACES, scalar_values(gemm, problem))
    arguments = [
        getattr(argument, "value", argument) for argument in library._typed_arguments(product, product.scalars())
    ]
    width = 3 if batch == 1 else 4  # address, type, lead and, in a batch, stride
    first, second, out = (arguments[start : start + width] for start in (6, 6 + width, 7 + 2 * width))
    assert [operand[0] for operand in (first, second, out)] == [PLACES[name] for name in "BAC"]
    assert [operand[1] for operand in (first, second, out)] == [code, code, code if output == "same" else 0]
    assert arguments[-2:] == [68, -1]  # CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT
    assert all(isinstance(scalar, ctypes.c_float) for scalar in product.scalars())


@pytest.mark.parametrize(("kernel", "problem"), list(problems()), ids=lambda value: getattr(value, "canonical", ""))
def test_a_vector_has_a_call_of_its_own(kernel, problem):
    host = random_arrays(kernel, problem, 1)
    scalars = scalar_values(kernel, problem)
    product = product_of(problem, PLACES, scalars)
    arguments = library._gemv_arguments(product, product.scalars())
    if 1 not in {product.rows, product.columns}:
        assert arguments is None
        return
    operation, rows, columns, _, matrix, lead, vector, step, _, out, _ = (getattr(a, "value", a) for a in arguments)
    flats = {PLACES[name]: array.reshape(-1) for name, array in host.items()}
    stored = by_columns(flats[matrix], rows, columns, lead)
    length = rows if operation else columns
    x = np.array([flats[vector][i * step] for i in range(length)])
    found = product.alpha * ((stored.T if operation else stored) @ x)
    if product.beta:
        found += product.beta * flats[out]
    assert np.allclose(found, kernel.reference(problem, host, scalars).value.reshape(-1), rtol=1e-12)


def test_versions_are_spelt_out():
    assert version_text(130100) == "13.1.0"


def test_a_heuristic_has_the_size_that_the_library_writes():
    assert ctypes.sizeof(Heuristic) == 96


class TimedCalls:
    """Executables are their own times: a list's items in turn, or a failure."""

    def __init__(self, wrong=()):
        self.asked, self.wrong = [], wrong

    def verify_timed(self, executable):
        if isinstance(executable.times, TrialFailure):
            raise executable.times
        return Verification(0.1, int(executable.name in self.wrong))

    def sample(self, executable, l2, count):
        self.asked.append((executable.name, l2))
        if isinstance(executable.times, TrialFailure):
            raise executable.times
        return [next(executable.times) for _ in range(count)]


class Timed:
    def __init__(self, name, times):
        self.name, self.times = name, times


def candidate(name, times, *, is_comparable=True, is_named=False):
    endless = times if isinstance(times, TrialFailure) else itertools.cycle(times)
    return Candidate(LibraryCall(name, lambda: None, is_comparable, is_named), Timed(name, endless))


def test_the_least_median_is_the_librarys_time_whoever_was_lucky_once():
    bench = TimedCalls()
    found = fastest(bench, [candidate("lucky", [0.9, 1.2, 1.2]), candidate("steady", [1.0])], "cold")
    assert found.call.name == "steady"
    assert {l2 for _, l2 in bench.asked} == {"cold"}


def test_calls_that_fail_or_are_wrong_are_left_out():
    failure = TrialFailure(Outcome.LAUNCH_FAILED, "status 15")
    calls = [candidate("failing", failure), candidate("wrong", [0.1]), candidate("right", [1.0])]
    assert fastest(TimedCalls(wrong={"wrong"}), calls, "warm").call.name == "right"
    assert fastest(TimedCalls(), [candidate("failing", failure)], "warm") is None


@pytest.mark.parametrize(("named_ms", "chosen"), [(1.005, "named"), (1.02, "other")])
def test_a_call_that_its_name_finds_again_goes_before_what_is_hardly_faster(named_ms, chosen):
    calls = [candidate("other", [1.0]), candidate("named", [named_ms], is_named=True)]
    assert fastest(TimedCalls(), calls, "cold").call.name == chosen


def test_what_is_far_behind_is_not_verified():
    calls = [candidate("right", [1.0]), candidate("far behind and never asked", [2.0])]
    bench = TimedCalls()
    bench.verify_timed = lambda executable, verify=bench.verify_timed: (
        pytest.fail(executable.name) if "far" in executable.name else verify(executable)
    )
    assert fastest(bench, calls, "cold").call.name == "right"


def test_what_one_would_do_instead_is_timed_only():
    calls = [candidate("with weights in 16 bits", [0.1], is_comparable=False)]
    assert fastest(TimedCalls(wrong={"with weights in 16 bits"}), calls, "cold").call is calls[0].call


def test_a_call_that_broke_the_context_is_no_matter_of_choice():
    failure = TrialFailure(Outcome.LAUNCH_FAILED, "illegal address", sticky=True)
    with pytest.raises(TrialFailure, match="illegal"):
        fastest(TimedCalls(), [candidate("breaking", failure), candidate("right", [1.0])], "warm")


def test_calls_far_behind_are_not_timed_again():
    bench = TimedCalls()
    fastest(bench, [candidate("slow", [2.0]), candidate("a", [1.0]), candidate("b", [1.1])], "warm")
    asked = [name for name, _ in bench.asked]
    assert asked.count("slow") == 1
    assert asked.count("a") == asked.count("b") == 1 + library_choice.ROUNDS


LINEAR = catalogue().get("linear")
SHAPE = {"m": 5, "n": 8, "k": 16}
ADDRESSES = {"X": 4096, "W": 8192, "b": 12288, "Y": 16384}


@pytest.fixture
def noted():
    with noting_library() as noting:
        yield noting


def product(dtype="bfloat16", activation="relu"):
    return fused_product(LINEAR.problem(SHAPE, dtype, {"activation": activation}), ADDRESSES, {})


def test_a_name_says_version_and_algorithm_and_is_of_one_algorithm_alone(noted):
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
def test_a_call_of_another_version_or_without_its_algorithm_is_not_made(noted, name, reason):
    assert reason in cublaslt.why_not_here(name)


def test_without_the_library_no_call_is_made(monkeypatch):
    def missing(name):
        raise LibraryError(f"{name} was not found")

    monkeypatch.setattr(cublaslt, "load", missing)
    cublaslt.version.cache_clear()
    assert cublaslt.why_not_here("cuBLASLt 13.1.2 (algorithm 66, FP32)") == "libcublasLt was not found"


@pytest.mark.parametrize(("dtype", "masks"), [("bfloat16", [2]), ("float32", [])])
def test_the_heuristic_is_asked_for_what_the_launcher_can_call(noted, dtype, masks):
    cublaslt.CublasLt().algorithms(product(dtype))
    settings = [(attribute, value) for _, attribute, value, _ in noted.of("cublasLtMatmulPreferenceSetAttribute")]
    assert [value for attribute, value in settings if attribute in {5, 6, 7, 8}] == [16] * 4
    assert [value for attribute, value in settings if attribute == 3] == masks
    assert [arguments[7] for arguments in noted.of("cublasLtMatmulAlgoGetHeuristic")] == [32]


def test_a_call_has_the_problems_arrays_its_own_workspace_and_the_stream(noted):
    third = cublaslt.CublasLt(stream=11, workspace=12).calls(product())[2]
    third.enqueue()
    [arguments] = noted.of("cublasLtMatmul")
    assert (arguments[3], arguments[5]) == (ADDRESSES["W"], ADDRESSES["X"])
    assert [arguments[place] for place in (8, 10)] == [ADDRESSES["Y"]] * 2
    assert arguments[-3:] == [12, 128, 11]
    set_on = noted.of("cublasLtMatmulDescSetAttribute")
    assert {value for _, attribute, value, _ in set_on if attribute == 8} == {ADDRESSES["b"]}
    assert {value for _, attribute, value, _ in set_on if attribute == 7} == {6}  # CUBLASLT_EPILOGUE_RELU_BIAS


@pytest.mark.parametrize("activation", ["gelu", "tanh", "silu", "sigmoid"])
def test_an_activation_that_the_library_has_not_is_no_part_of_a_call(activation):
    assert product(activation=activation) is None
