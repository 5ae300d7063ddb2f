"""The normalisations of rows: their reference, and their sources run for real on the CPU device."""

import math

import ml_dtypes
import numpy as np
import pytest
from contracts.launches_on_host import SANITIZING, checked
from contracts.variant import H200, verified
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays, scalar_values
from tilewright.tuner.loop.verify import compare

NAMES = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")


def drawn(name, dtype="float32", m=30, n=257):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": m, "n": n}, dtype)
    arrays = random_arrays(kernel, problem, 3)
    return kernel, problem, arrays, kernel.reference(problem, arrays, scalar_values(kernel, problem))


def normalised(arrays, eps=1e-5, *, is_centred=True):
    """In float32, as a kernel does it."""
    x = arrays["X"].astype(np.float32)
    if "R" in arrays:
        x = (x + arrays["R"].astype(np.float32)).astype(arrays["X"].dtype).astype(np.float32)
    w = arrays["w"].astype(np.float32)
    if "b" in arrays and is_centred:
        x = x - x.mean(axis=1, keepdims=True)
    y = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + np.float32(eps)) * w
    return y + arrays["b"].astype(np.float32) if "b" in arrays else y


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_definition(name):
    _kernel, _problem, arrays, references = drawn(name, m=3, n=7)
    for i in range(3):
        row = [float(v) for v in arrays["X"][i]]
        if "R" in arrays:
            row = [float(np.float32(v + float(r))) for v, r in zip(row, arrays["R"][i], strict=True)]
            assert references["S"].value[i] == pytest.approx(row, rel=1e-7)
        mean = math.fsum(row) / 7 if "b" in arrays else 0.0
        root = math.sqrt(math.fsum((v - mean) ** 2 for v in row) / 7 + float(np.float32(1e-5)))
        bias = arrays["b"].astype(float) if "b" in arrays else np.zeros(7)
        expected = [(v - mean) / root * float(w) + b for v, w, b in zip(row, arrays["w"], bias, strict=True)]
        assert references["Y"].value[i] == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_float32_arithmetic_is_within_the_bound_and_without_eps_it_is_not(name, dtype):
    _, problem, arrays, references = drawn(name, dtype)
    y = references["Y"]
    assert compare(normalised(arrays).astype(dtype), y, dtype).bound_ratio < 1
    assert compare(normalised(arrays, eps=0.0).astype(dtype), y, dtype).wrong > problem.shape["n"]


@pytest.mark.parametrize("name", ["layer_norm", "add_layer_norm"])
def test_a_mean_that_is_left_in_is_found(name):
    _, _, arrays, references = drawn(name, "bfloat16")
    assert compare(normalised(arrays, is_centred=False).astype("bfloat16"), references["Y"], "bfloat16").wrong


def test_what_is_normalised_behind_an_addition_is_the_residual_as_it_is_stored():
    kernel, problem, arrays, _ = drawn("add_rms_norm", "bfloat16", m=1, n=4)
    arrays["X"][:] = [[1, 1, 1, 1]]
    arrays["R"][:] = [[2**-9, -(2**-9), 0, 0]]  # too little for bfloat16 to keep
    reference = kernel.reference(problem, arrays, {"eps": 0.0})
    assert np.array_equal(reference["Y"].value, arrays["w"].astype(float)[np.newaxis])
    assert reference["S"].value.astype(ml_dtypes.bfloat16).astype(float).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("name", "matrices", "vectors", "operations"),
    [
        ("rms_norm", 2, 1, 4),
        ("layer_norm", 2, 2, 7),
        ("add_rms_norm", 4, 1, 5),
        ("add_layer_norm", 4, 2, 8),
    ],
)
def test_work_is_counted_by_the_problem(name, matrices, vectors, operations):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": 10, "n": 100}, "bfloat16")
    assert kernel.bytes_moved(problem) == 2 * (matrices * 1000 + vectors * 100)
    assert kernel.memory_bytes(problem) == kernel.bytes_moved(problem)
    assert kernel.flops(problem) == operations * 1000


CONFIGURATIONS = {
    "part of a warp": Configuration.of("held", {"THREADS_PER_ROW": 8, "ROWS": 8, "VECTOR_WIDTH": 1}),
    "two warps a row": Configuration.of("held", {"THREADS_PER_ROW": 64, "ROWS": 2, "VECTOR_WIDTH": 1}),
    "walking": Configuration.of("walk", {"BLOCK": 64, "VECTOR_WIDTH": 1}),
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("name", "how", "dtype"),
    sampled(
        ((name, how, dtype) for name in NAMES for how in CONFIGURATIONS for dtype in DTYPES),
        lambda name, how, dtype: NAMES.index(name) == (list(CONFIGURATIONS).index(how) + DTYPES.index(dtype)) % 4,
    ),
)
def test_odd_shapes_are_right(device, name, how, dtype):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": 9, "n": 203}, dtype)
    assert verified(device, kernel, problem, CONFIGURATIONS[how]).wrong == 0


@pytest.mark.parametrize(
    ("name", "n", "dtype"),
    sampled(
        ((name, n, dtype) for name in NAMES for n in (1, 40, 1032) for dtype in DTYPES),
        lambda name, n, dtype: (name, n, dtype) in {("add_layer_norm", 1032, "bfloat16"), ("rms_norm", 1, "float32")},
    ),
)
def test_corners_of_the_space_are_right(device, name, n, dtype):
    kernel = catalogue().get(name)
    problem = kernel.problem({"m": 5, "n": n}, dtype)
    for variant in ("held", "walk"):
        feasible = kernel.space(problem, device.model.limits, only=[variant]).feasible
        for configuration in dict.fromkeys((feasible[0], feasible[-1])):
            assert verified(device, kernel, problem, configuration).wrong == 0


def test_half_types_have_loads_of_eight_elements_and_others_have_not():
    kernel = catalogue().get("rms_norm")
    limits_of = {"bfloat16": 8, "float16": 8, "float32": 4, "float64": 2}
    for dtype, widest in limits_of.items():
        problem = kernel.problem({"m": 64, "n": 4096}, dtype)
        space = kernel.space(problem, H200)
        assert max(c.values.VECTOR_WIDTH for c in space.feasible) == widest


@SANITIZING
@pytest.mark.parametrize("how", CONFIGURATIONS)
@pytest.mark.parametrize("mode", ["address", pytest.param("thread", marks=EXHAUSTIVE)])
def test_variants_are_clean_under_sanitizers(device, how, mode):
    kernel = catalogue().get("add_layer_norm")
    bench = device.bench(kernel, kernel.problem({"m": 9, "n": 203}, "bfloat16"), seed=5)
    assert checked(bench, CONFIGURATIONS[how], mode).is_clean
    bench.close()
