"""Variants of FP16 parts on a GPU: infinities, NaN, the smallest numbers, wide spans, and the time that they take."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_fp16_sm90_space import TENSOR3XFP16_SM90
from tilewright.tuner.arrays import DRAWN_KINDS, FACTOR_KINDS
from tilewright.tuner.loop.verify import compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
GEMM = replace(KERNEL, variants=(TENSOR3XFP16_SM90,), default_variant=TENSOR3XFP16_SM90.name)
LAYOUTS = [{}, {"trans_a": True, "trans_b": True}, {"trans_b": True, "beta_zero": False}]


@pytest.fixture(scope="module")
def device(device):
    if device.model.limits.compute_capability != (9, 0):
        pytest.skip("the variants are for compute capability 9.0")
    return device


def bench_of(device, sizes, **options):
    """A bench, and random configurations for it."""
    problem = GEMM.problem(dict(zip("mnk", sizes, strict=True)), "float32", options)
    feasible = GEMM.space(problem, device.model.limits).feasible
    return device.bench(GEMM, problem, 1), random.Random(str(sizes)).sample(feasible, min(3, len(feasible)))


def normal(bench, seed=1):
    """Standard normal arrays of the problem."""
    generator = np.random.default_rng(seed)
    return {t.name: generator.standard_normal(t.shape(bench.problem), np.float32) for t in GEMM.tensors}


def product(bench, executable, arrays):
    """What the kernel makes of these arrays."""
    for name, array in arrays.items():
        bench.device.upload(bench.arrays.addresses[name], np.ascontiguousarray(array))
    executable.enqueue()
    bench.device.synchronize()
    return bench.output()


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(257, 500, 130), (130, 201, 4400), (1000, 999, 1001), (1, 1, 128), (128, 64, 2048), (1540, 1600, 64)],
    ids=str,
)
def test_every_kind_of_inputs_is_within_the_bound_twice_over(device, sizes, options):
    bench, configurations = bench_of(device, sizes, **options)
    for configuration in configurations:
        executable = bench.compile(configuration)
        for _ in range(2):  # packed as FP16 and as BF16 parts in turn
            found = bench.verify_each_kind(executable)
            assert {*DRAWN_KINDS, *FACTOR_KINDS} <= {one.inputs for one in found}
            assert all(one.wrong == 0 for one in found), (configuration, found)
    bench.close()


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("scale", [0, 30], ids=["in FP16", "in BF16"])
def test_infinities_and_nan_come_out_as_of_fp32_arithmetic_and_nowhere_else(device, options, scale):
    bench, configurations = bench_of(device, (130, 201, 1100), **options)
    arrays = normal(bench)
    arrays["A"] = np.ldexp(arrays["A"], np.random.default_rng(2).integers(-scale, scale + 1, arrays["A"].shape)).astype(
        np.float32
    )
    a = arrays["A"].T if options.get("trans_a") else arrays["A"]
    b = arrays["B"].T if options.get("trans_b") else arrays["B"]
    a[3, 5], a[17, 1000], a[129, 899], a[64, 0], a[64, 1] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    b[7, 11], b[898, 200], b[5, 100], b[5, 101] = -np.inf, np.nan, 0, 1e-42
    with np.errstate(invalid="ignore"):
        reference = GEMM.reference(bench.problem, arrays, bench.scalars)
    odd = ~np.isfinite(reference.value)
    assert 5 * 201 < odd.sum() < odd.size / 2
    for configuration in configurations:
        found = product(bench, bench.compile(configuration), arrays)
        np.testing.assert_array_equal(found[odd], reference.value[odd])
        verification = compare(found, reference, "float32")
        assert verification.wrong == 0, (configuration, verification)
    bench.close()


@pytest.mark.parametrize("exponent", [-100, -126, -130])
def test_the_smallest_numbers_keep_their_digits(device, exponent):
    bench, configurations = bench_of(device, (130, 201, 1100))
    arrays = normal(bench)
    arrays["A"] = np.ldexp(arrays["A"], exponent).astype(np.float32)
    reference = GEMM.reference(bench.problem, arrays, bench.scalars)
    for configuration in configurations:
        verification = compare(product(bench, bench.compile(configuration), arrays), reference, "float32")
        assert verification.bound_ratio < 0.5, (configuration, verification)
    bench.close()


def test_an_outlier_among_small_numbers_does_not_cost_their_digits(device):
    """Whose column of B has nothing where the outlier is: all that is left are numbers far below the largest."""
    bench, configurations = bench_of(device, (200, 300, 4096))
    arrays = {"A": np.abs(normal(bench)["A"]) + 1, "B": np.abs(normal(bench)["B"]) + 1}
    arrays["A"][:, 77], arrays["B"][77] = 2.0**24, 0
    reference = GEMM.reference(bench.problem, arrays, bench.scalars)
    for configuration in configurations:
        verification = compare(product(bench, bench.compile(configuration), arrays), reference, "float32")
        assert verification.wrong == 0, (configuration, verification)
    bench.close()


def test_odd_numbers_take_less_than_twice_the_time(device):
    bench, (configuration, *_) = bench_of(device, (2048, 2048, 2048))
    executable = bench.compile(configuration)

    def time_ms(arrays):
        product(bench, executable, arrays)
        return min(device.times_ms(executable.enqueue, 20))

    usual = normal(bench)
    one, all_of_them = ({**usual, "A": usual["A"].copy()} for _ in range(2))
    one["A"][5, 7], all_of_them["A"][:] = np.nan, np.nan
    usual_ms = time_ms(usual)
    assert time_ms(one) < 2 * usual_ms
    assert time_ms(all_of_them) < 2 * usual_ms
    bench.close()


def test_launches_with_the_same_inputs_give_the_same_bits(device):
    bench, configurations = bench_of(device, (700, 700, 1520), beta_zero=True)
    arrays = normal(bench)
    for configuration in configurations:
        executable = bench.compile(configuration)
        first = product(bench, executable, arrays)
        np.testing.assert_array_equal(first, product(bench, executable, arrays))
    bench.close()
