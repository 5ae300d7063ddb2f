"""softmax: its reference, and its sources run for real on the CPU device."""

import math

import numpy as np
import pytest
from contracts.launches_on_host import SANITIZING, checked
from contracts.variant import H200, verified
from faulty_kernels import with_change
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import UNIT_ROUNDOFF
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu import bench as cpu_bench

SOFTMAX = catalogue().get("softmax")


def rows(m, n, dtype="float32", scale=1.0):
    x = np.random.default_rng(5).standard_normal((m, n)) * scale
    return SOFTMAX.problem({"m": m, "n": n}, dtype), x.astype(dtype)


def ratio(out, x, problem):
    """The worst error in units of the bound, c = 1."""
    reference = SOFTMAX.reference(problem, {"X": x}, {})
    bound = math.sqrt(reference.terms) * UNIT_ROUNDOFF[problem.dtype] * reference.magnitude
    return float((np.abs(out.astype(np.float64) - reference.value) / bound).max())


def exponentials(x):
    return np.exp(x - x.max(axis=1, keepdims=True))


def one_pass(x):
    """The online form, an element at a time, all in float32: the most roundings that a kernel may have."""
    highest, total = x[:, 0].copy(), np.ones(len(x), x.dtype)
    for column in x.T[1:]:
        new = np.maximum(highest, column)
        total = total * np.exp(highest - new) + np.exp(column - new)
        highest = new
    return np.exp(x - highest[:, None]) * (x.dtype.type(1) / total)[:, None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_reference_is_the_definition(dtype):
    problem, x = rows(3, 7, dtype)
    reference = SOFTMAX.reference(problem, {"X": x}, {})
    for i, row in enumerate(x.astype(float).tolist()):
        total = math.fsum(map(math.exp, row))
        assert reference.value[i] == pytest.approx([math.exp(v) / total for v in row], rel=1e-13)
    assert reference.terms == 7


@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (2, 1.0), (10, 30.0), (1000, 1.0), (1000, 60.0), (5000, 0.01)])
@pytest.mark.parametrize("order", ["random", "rising", "falling"])
def test_float32_arithmetic_stays_within_the_bound(n, scale, order):
    problem, x = rows(20, n, scale=scale)
    if order != "random":
        x = np.sort(x, axis=1)[:, :: 1 if order == "rising" else -1]
    e = exponentials(x)
    assert ratio(e / np.cumsum(e, axis=1, dtype=np.float32)[:, -1:], x, problem) < 1
    assert ratio(one_pass(x), x, problem) < 2  # which is what verification grants


@pytest.mark.parametrize("n", [2, 10, 1000, 4096])
@pytest.mark.parametrize("bug", ["a lost term", "a term twice", "not divided", "the neighbour's sum", "log"])
def test_a_bug_is_over_the_bound(n, bug):
    problem, x = rows(20, n)
    e = exponentials(x.astype(np.float64))
    total = e.sum(axis=1, keepdims=True)
    wrong = {
        "a lost term": lambda: e / (total - e[:, -1:]),
        "a term twice": lambda: e / (total + e[:, :1]),
        "not divided": lambda: e,
        "the neighbour's sum": lambda: e / np.roll(total, 1, axis=0),
        "log": lambda: np.log(e / total),
    }[bug]()
    assert ratio(wrong, x, problem) > 10


def test_large_and_masked_elements_have_a_bound_too():
    problem, x = rows(4, 50, scale=1e4)
    x[:, ::3] = -np.inf
    reference = SOFTMAX.reference(problem, {"X": x}, {})
    assert np.isfinite(reference.value).all()
    assert np.isfinite(reference.magnitude).all()
    assert (reference.value[:, ::3] == 0).all()
    assert reference.value.sum(axis=1) == pytest.approx(np.ones(4))


@pytest.mark.parametrize("n", [1, 2, 7, 10, 31, 64, 997, 1000, 1024, 1025, 4096, 100_003])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_row_length_has_variants_that_take_it(n, dtype):
    problem = SOFTMAX.problem({"m": 100, "n": n}, dtype)
    holding = ["warp"] if n <= 1024 else ["held"] if n <= 32768 else []
    usable = [variant.name for variant in SOFTMAX.usable_variants(problem, H200)]
    assert usable == ([*holding, "block", "online"])
    for variant in usable:
        assert len(SOFTMAX.space(problem, H200, only=[variant]).defaults()) == 1


def test_work_is_counted_as_declared():
    problem = SOFTMAX.problem({"m": 3, "n": 7}, "float64")
    assert SOFTMAX.flops(problem) == 5 * 21
    assert SOFTMAX.bytes_moved(problem) == 2 * 8 * 21


SMALL_BLOCK = {"BLOCK": 64, "VECTOR_WIDTH": 1, "UNROLL": 2}
CONFIGURATIONS = {
    "warp": Configuration.of("warp", {"WARPS": 2, "LANES": 8, "VECTOR_WIDTH": 1}),
    "block": Configuration.of("block", SMALL_BLOCK),
    "online": Configuration.of("online", SMALL_BLOCK),
}

ROWS = [(1, "float32"), (10, "float64"), (250, "float32"), (1000, "float64")]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("variant", "n", "dtype"),
    sampled(((variant, *row) for variant in CONFIGURATIONS for row in ROWS), lambda _, n, __: n in {1, 1000}),
)
def test_corners_of_the_space_are_right(device, variant, n, dtype):
    problem = SOFTMAX.problem({"m": 7, "n": n}, dtype)
    feasible = SOFTMAX.space(problem, device.model.limits, only=[variant]).feasible
    for configuration in dict.fromkeys((feasible[0], feasible[-1])):
        assert verified(device, SOFTMAX, problem, configuration).wrong == 0


@pytest.mark.parametrize("variant", CONFIGURATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_and_masked_elements_are_right(device, monkeypatch, variant, dtype):
    """exp would overflow if the largest were not taken off; whole stretches of minus infinity are masked elements."""

    def draw(_kernel, problem, seed, _kind):
        x = np.random.default_rng(seed).standard_normal(tuple(problem.shape.values())) * 1e4
        x[:, :100] = -np.inf
        return {"X": x.astype(problem.dtype)}

    monkeypatch.setattr(cpu_bench, "random_arrays", draw)
    problem = SOFTMAX.problem({"m": 9, "n": 203}, dtype)
    assert verified(device, SOFTMAX, problem, CONFIGURATIONS[variant]).wrong == 0


@pytest.mark.parametrize(("n", "dtype"), [(1025, "float32"), (4096, "bfloat16"), (4100, "float64")])
def test_a_row_that_several_warps_hold_is_right(device, n, dtype):
    problem = SOFTMAX.problem({"m": 3, "n": n}, dtype)
    feasible = SOFTMAX.space(problem, device.model.limits, only=["held"]).feasible
    for configuration in dict.fromkeys((feasible[0], feasible[-1])):
        assert verified(device, SOFTMAX, problem, configuration).wrong == 0


@pytest.mark.in_turn(3)
@SANITIZING
@pytest.mark.parametrize("variant", CONFIGURATIONS)
@pytest.mark.parametrize("mode", ["address", "thread"])
def test_variants_are_clean_under_sanitizers(device, variant, mode):
    bench = device.bench(SOFTMAX, SOFTMAX.problem({"m": 9, "n": 203}), seed=5)
    assert checked(bench, CONFIGURATIONS[variant], mode).is_clean
    bench.close()


@pytest.mark.parametrize(
    ("variant", "file", "text", "bug"),
    [
        ("warp", "warp.cu", "first + s * STEP >= N", "first + s * STEP >= N - 1"),
        ("block", "block_row.cuh", "return lanes_sum<32>(lane < WARPS", "return lanes_sum<32>(lane < WARPS - 1"),
        ("online", "online.cu", "sum *= exp(highest - higher);", ""),
        ("online", "online.cu", "sum *= exp(highest - row_highest);", ""),
    ],
)
def test_a_bug_is_found(device, tmp_path, variant, file, text, bug):
    """The verification that tuning runs sees what one changed line does."""
    broken = with_change(SOFTMAX, tmp_path, file, text, bug)
    problem = SOFTMAX.problem({"m": 9, "n": 203})
    assert verified(device, broken, problem, CONFIGURATIONS[variant]).wrong > 0
