"""FP64 gemm on tensor cores: numbers at the ends of the range, and the same bits in every launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_fp64_space import TENSOR_FP64
from tilewright.kernels.space import Configuration

pytestmark = pytest.mark.gpu
GEMM = replace(KERNEL, variants=(TENSOR_FP64,))
M, N, K = 100, 90, 517
TILES = {"WARP_M": 32, "WARP_N": 16, "WARPS_M": 1, "WARPS_N": 2, "STAGES": 2}


@pytest.fixture(
    scope="module",
    params=[
        {"MMA_K": 4},
        {"MMA_K": 8, "SPLIT_K": 4},
        {"MMA_K": 8, "AHEAD": 0, "SPLIT_K": 8, "BY_CLUSTER": 1},
        {"BLOCKS": 132},
    ],
    ids=str,
)
def multiply(device, request):
    """A function of A (M, K) and B (K, N) that gives 2 A B."""
    if request.param.get("MMA_K", 4) > 4 and device.model.limits.compute_capability < (9, 0):
        pytest.skip("needs products of more terms")
    bench = device.bench(GEMM, GEMM.problem({"m": M, "n": N, "k": K}, "float64"), 1)
    default = TENSOR_FP64.space().default().values
    executable = bench.compile(Configuration.of("tensor_fp64", {**default, **TILES, **request.param}))

    def product(a, b):
        for name, data in (("A", a), ("B", b)):
            device.upload(bench.arrays.addresses[name], np.ascontiguousarray(data))
        executable.enqueue()
        return bench.output()

    yield product
    bench.close()


def normal(seed=1):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((M, K)), generator.standard_normal((K, N))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1.7e308], ids=str)
def test_infinities_nan_and_the_largest_numbers_reach_the_sums_that_they_are_in(multiply, value):
    a, b = normal()
    a[3, 5] = value
    b[9, 33] = value
    b[5, 40:50] = 0  # times infinity: NaN
    b[5, 50:60] = 1e-3  # times the largest: finite
    out = multiply(a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = 2 * (a @ b)
    concerned = np.zeros((M, N), bool)
    concerned[3], concerned[:, 33] = True, True
    assert np.isfinite(out[~concerned]).all()
    np.testing.assert_allclose(out[~concerned], expected[~concerned], rtol=1e-12, atol=1e-12)
    odd = ~np.isfinite(expected)
    assert odd.any()
    np.testing.assert_array_equal(out[odd], expected[odd])


def test_subnormal_numbers_keep_their_digits(multiply):
    a, b = normal()
    a *= 2.0**-1060  # of 2^-1074, the smallest
    b = np.sign(b)
    out = multiply(a, b)
    np.testing.assert_allclose(out, 2 * (a @ b), rtol=0, atol=2.0**-1073)
    assert np.count_nonzero(out) > 0.9 * out.size


def test_the_same_inputs_give_the_same_bits(multiply):
    a, b = normal(2)
    first = multiply(a, b)
    for _ in range(3):
        np.testing.assert_array_equal(multiply(a, b), first)
