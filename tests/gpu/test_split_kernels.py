"""On a GPU: sums that meet in a workspace or in clusters, FP64 on tensor cores, and textures."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from contracts import textured

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_fp64_space import TENSOR_FP64
from tilewright.kernels.space import Configuration
from tilewright.tuner.devices.cuda import texture
from tilewright.tuner.devices.cuda.driver import call
from tilewright.tuner.errors import TunerError

pytestmark = pytest.mark.gpu
GEMM, GEMV, LINEAR = (catalogue().get(name) for name in ("gemm", "gemv", "linear"))


def outputs_of_launches(device, kernel, problem, variant, wanted):
    """Outputs from the inputs that are timed, of each of two configurations as wanted: two, and one after a timing.

    Before each, launches with all kinds of inputs were right, also those whose outputs have NaN.
    """
    bench = device.bench(kernel, problem, 3)
    feasible = [c for c in kernel.space(problem, device.model.limits, [variant]).feasible if wanted(c.values)]
    assert feasible, f"no such configuration of {variant}"
    for configuration in (feasible[0], feasible[-1]):
        executable = bench.compile(configuration)
        found = []
        for number in range(3):
            if number == 2:
                bench.sample(executable, "warm", 3)
            assert [each.wrong for each in bench.verify_each_kind(executable)] == [0] * len(bench.arrays.kinds)
            assert bench.verify_timed(executable).wrong == 0
            found.append(bench.output())
        yield configuration, found
    bench.close()


@pytest.mark.parametrize(
    ("by_cluster", "shares"),
    [(0, {8}), (1, {16}), (1, {4}), (0, set(range(65, 128)))],
    ids=["workspace", "cluster", "clusters and workspace", "across tiles"],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_split_product_is_the_same_in_every_launch(device, dtype, by_cluster, shares):
    shape = {"m": 96, "n": 130, "k": 9000} if max(shares) < 65 else {"m": 1100, "n": 1030, "k": 1030}
    problem = GEMM.problem(shape, dtype, {"trans_b": True, "beta_zero": True})

    def wanted(c):
        return c.SHARE_K in shares and by_cluster == c.BY_CLUSTER

    for configuration, found in outputs_of_launches(device, GEMM, problem, "register", wanted):
        for other in found[1:]:
            assert np.array_equal(found[0], other), configuration


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_split_layer_is_activated_once(device, dtype):
    problem = LINEAR.problem({"m": 40, "n": 70, "k": 6000}, dtype, {"activation": "gelu"})
    for configuration, found in outputs_of_launches(device, LINEAR, problem, "register", lambda c: c.SHARE_K < 64):
        assert np.array_equal(found[0], found[2]), configuration


@pytest.mark.parametrize(
    ("dtype", "beta_zero", "shape"),
    list(itertools.product(("float32", "float64"), (False, True), ((3, 40_000), (513, 2049), (1, 999), (700, 1)))),
)
def test_transposed_gemv_is_right_split_and_whole(device, dtype, beta_zero, shape):
    problem = GEMV.problem(dict(zip("mn", shape, strict=True)), dtype, {"trans_a": True, "beta_zero": beta_zero})
    for splits in (True, False):
        feasible = GEMV.space(problem, device.model.limits, ["columns"]).feasible
        if any((c.values.SPLIT > 1) == splits for c in feasible):
            launches = outputs_of_launches(device, GEMV, problem, "columns", lambda c, s=splits: (c.SPLIT > 1) == s)
            for configuration, found in launches:
                assert not beta_zero or np.array_equal(found[0], found[1]), configuration


FP64_GEMM = replace(KERNEL, variants=(TENSOR_FP64,))

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
    bench = device.bench(FP64_GEMM, FP64_GEMM.problem({"m": M, "n": N, "k": K}, "float64"), 1)
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


def test_textures_follow_each_kind_of_inputs(device):
    bench = device.bench(textured.TEXTURED, textured.PROBLEM, seed=3)
    executable = bench.compile(textured.with_bug(0))
    for verification in (*bench.verify_each_kind(executable), bench.verify_timed(executable)):
        assert verification.wrong == 0, verification.message()
    bench.close()


def test_a_bench_frees_its_textures(device, monkeypatch):
    """By what the driver has done: free memory is that of the whole GPU, of which other processes take too."""
    done = Counter()

    def counted(name, *arguments):
        call(name, *arguments)  # raises where the driver refuses, as it does what is not there
        done[name] += 1

    monkeypatch.setattr(texture, "call", counted)
    device.bench(textured.TEXTURED, textured.PROBLEM, seed=3).close()
    assert done["cuTexObjectCreate"] == done["cuTexObjectDestroy"] > 0
    assert done["cuArray3DCreate_v2"] == done["cuArrayDestroy"] > 0
    assert done["cuMemAllocPitch_v2"] == done["cuMemFree_v2"] > 0


def test_a_texture_that_is_too_large_is_refused_by_name(device):
    shape = {"h": 1, "w": 1 << 18, "d": 1}
    with pytest.raises(TunerError, match=r"image of .* cannot be a texture of \(262144, 1\) texels: cuTexObjectCreate"):
        device.bench(textured.TEXTURED, textured.TEXTURED.problem(shape), seed=3)
