"""softmax's sources, run for real on the CPU device."""

import numpy as np
import pytest
from contracts.host_compiler import SANITIZING, checked
from contracts.verified import verified
from faulty_kernels import with_change
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cpu import bench as cpu_bench

SOFTMAX = catalogue().get("softmax")
SMALL_BLOCK = {"BLOCK": 64, "VECTOR_WIDTH": 1, "UNROLL": 2}
CONFIGURATIONS = {
    "warp": Configuration.of("warp", {"WARPS": 2, "LANES": 8, "VECTOR_WIDTH": 1}),
    "block": Configuration.of("block", SMALL_BLOCK),
    "online": Configuration.of("online", SMALL_BLOCK),
}


ROWS = [(1, "float32"), (10, "float64"), (250, "float32"), (1000, "float64")]


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
