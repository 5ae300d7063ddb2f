"""Tensor-core gemm on a GPU: numbers at the ends of the float32 range, and every input kind against the bound."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.gemm import tensor_mma_space
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_sliced_space import TENSOR3XTF32_SLICED
from tilewright.kernels.space import Configuration
from tilewright.tuner.loop import verify

pytestmark = pytest.mark.gpu
GEMM = replace(KERNEL, variants=(tensor_mma_space.TENSOR3XTF32, TENSOR3XTF32_SLICED, tensor_mma_space.TENSOR1XTF32))
M, N, K = 100, 90, 128
SMALL_TILES = {"PROMOTE_K": 16, "STAGES": 2, "TILE_K": 16, "WARP_M": 32, "WARP_N": 32, "WARPS_M": 1, "WARPS_N": 2}
SLICED = {"SLICES": 2, "TILE_K": 32, "BY_CLUSTER": 1}


@pytest.fixture(
    scope="module",
    params=[("tensor3xtf32", 1), ("tensor3xtf32", 4), ("tensor3xtf32_sliced", 4), ("tensor1xtf32", 1)],
    ids=str,
)
def multiply(device, request):
    """A function of A (M, K) and B (K, N) that gives 2 A B by the variant, k in so many parts."""
    variant, split_k = request.param
    options = {"accuracy": "tf32"} if variant == "tensor1xtf32" else {}
    bench = device.bench(GEMM, GEMM.problem({"m": M, "n": N, "k": K}, options=options), 1)
    default = GEMM.variant(variant).space().default().values
    more = SLICED if variant == "tensor3xtf32_sliced" else {}
    executable = bench.compile(Configuration.of(variant, {**default, **SMALL_TILES, **more, "SPLIT_K": split_k}))

    def product(a, b):
        for name, data in (("A", a), ("B", b)):
            device.upload(bench.arrays.addresses[name], np.ascontiguousarray(data, dtype=np.float32))
        executable.enqueue()
        return bench.output()

    yield variant, product
    bench.close()


def normal(seed=1):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((M, K)).astype(np.float32), generator.standard_normal((K, N)).astype(np.float32)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4028e38, 3.4020001e38], ids=str)
def test_infinities_nan_and_the_largest_numbers_give_what_float32_arithmetic_gives(multiply, value):
    variant, multiply = multiply
    if variant == "tensor1xtf32" and np.isfinite(value):
        pytest.skip("rounded to TF32 these are infinite")
    a, b = normal()
    a[3, 5] = value
    b[9, 33] = value
    b[5, 40:50] = 0  # times infinity: NaN
    b[5, 50:60] = np.float32(1e-3)  # times the largest: finite
    out = multiply(a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.zeros((M, N), np.float32)
        for p in range(K):  # in order, so that what overflows on the way does so here
            expected += a[:, p : p + 1] * b[p]
        expected *= 2
    concerned = np.zeros((M, N), bool)
    concerned[3], concerned[:, 33] = True, True
    odd = ~np.isfinite(expected)
    assert odd.any()
    assert not (odd & ~concerned).any()
    np.testing.assert_array_equal(out[odd], expected[odd])
    assert np.isfinite(out[~odd]).all()
    np.testing.assert_allclose(out[~odd], expected[~odd], rtol=2e-2, atol=0.1)


def test_the_smallest_numbers_are_as_exact_as_others(multiply):
    variant, multiply = multiply
    a, b = normal()
    a[7] *= np.float32(2.0**-130)
    b *= np.float32(2.0**80)
    out = multiply(a, b).astype(np.float64)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = 2 * math.sqrt(K) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b))
    if variant == "tensor1xtf32":  # of subnormal numbers TF32 has fewer bits
        bound = 2.0**14 * bound + 2.0**-136 * np.abs(wide_b).sum(axis=0)
    assert (np.abs(out - 2 * (wide_a @ wide_b)) <= 2 * bound).all()


KINDS = {
    "normal": lambda g, *shape: g.standard_normal(shape),
    "uniform": lambda g, *shape: g.random(shape),
    "scaled": lambda g, *shape: g.standard_normal(shape) * 2.0 ** g.integers(-30, 31, shape),
}


def upload(device, bench, kind):
    """Puts inputs of that kind on the device; gives their reference."""
    numbers = np.random.default_rng(2)
    arrays = {}
    for tensor in GEMM.tensors[:2]:
        arrays[tensor.name] = KINDS[kind](numbers, *tensor.shape(bench.problem)).astype(np.float32)
        device.upload(bench.arrays.addresses[tensor.name], arrays[tensor.name])
    return GEMM.reference(bench.problem, arrays, bench.scalars)


@pytest.mark.parametrize("variant", ["tensor3xtf32", "tensor3xtf32_sliced"])
@pytest.mark.parametrize("sizes", [(129, 77, 64), (200, 130, 515), (64, 96, 2048)], ids=str)
def test_random_configurations_keep_the_bound_on_every_kind_of_inputs(device, sizes, variant):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b")}
    problem = GEMM.problem(dict(zip("mnk", sizes, strict=True)), options=options)
    feasible = GEMM.space(problem, device.model.limits, [variant]).feasible
    bench = device.bench(GEMM, problem, 1)
    executables = {c: bench.compile(c) for c in generator.sample(list(feasible), 5)}
    for kind in KINDS:
        reference = upload(device, bench, kind)
        for configuration, executable in executables.items():
            executable.enqueue()
            found = verify.compare(bench.output(), reference, "float32")
            assert found.wrong == 0, (kind, configuration, found.message())
    bench.close()
