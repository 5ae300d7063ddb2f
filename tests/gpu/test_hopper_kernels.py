"""gemm on Hopper's tensor cores: infinities, NaN, the largest and the smallest numbers; sums by way of a workspace."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_sm90_space import ERROR_UNITS, TENSOR1XTF32_SM90, TENSOR3XTF32_SM90

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
GEMM = replace(KERNEL, variants=(TENSOR3XTF32_SM90, TENSOR1XTF32_SM90))
SIZES = {"m": 130, "n": 201, "k": 4400}  # k: from where both small products may be in BF16


@pytest.fixture(scope="module")
def device(device):
    if device.model.limits.compute_capability != (9, 0):
        pytest.skip("the variants are for compute capability 9.0")
    return device


def draw(device, variant, problem, generator, **fixed):
    """A random feasible configuration."""
    space = replace(GEMM, variants=(variant,)).space(problem, device.model.limits)
    return generator.choice([c for c in space.feasible if fixed.items() <= dict(c.items).items()])


def product(bench, configuration, a, b):
    """What the kernel makes of these operands, alpha left out."""
    bench.device.upload(bench.arrays.addresses["A"], np.ascontiguousarray(a))
    bench.device.upload(bench.arrays.addresses["B"], np.ascontiguousarray(b))
    executable = bench.compile(configuration)
    executable.enqueue()
    bench.device.synchronize()
    return bench.output() / np.float32(bench.scalars["alpha"])


CASES = [
    (TENSOR3XTF32_SM90, {"SMALL_BF16": 0, "SPLIT_K": 1}),
    (TENSOR3XTF32_SM90, {"SMALL_BF16": 1, "SPLIT_K": 4}),
    (TENSOR3XTF32_SM90, {"SMALL_BF16": 2, "SPLIT_K": 1}),
    (TENSOR1XTF32_SM90, {"SPLIT_K": 1}),
    (TENSOR1XTF32_SM90, {"SPLIT_K": 6}),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name} {case[1]}")
def case(device, request):
    """The bench of a problem and a configuration for it."""
    variant, fixed = request.param
    accuracy = "tf32" if variant is TENSOR1XTF32_SM90 else "fp32"
    problem = GEMM.problem(SIZES, "float32", {"accuracy": accuracy})
    bench = device.bench(GEMM, problem, 1)
    yield bench, draw(device, variant, problem, random.Random(str(fixed)), **fixed)
    bench.close()


def test_infinities_and_nan_come_out_as_of_fp32_arithmetic_and_nowhere_else(case):
    bench, configuration = case
    generator = np.random.default_rng(1)
    a = generator.standard_normal((SIZES["m"], SIZES["k"]), np.float32)
    b = generator.standard_normal((SIZES["k"], SIZES["n"]), np.float32)
    a[3, 5], a[17, 1000], a[129, 2099] = np.inf, -np.inf, np.nan
    b[7, 11], b[2098, 200], b[5, 100] = np.inf, np.uint32(0xFFFFFFFF).view(np.float32), 0
    # Far below what BF16, and above what TF32, rounds to infinity.
    a[50, 9], a[51, 9], b[9, :] = 3e38, np.finfo(np.float32).max, generator.uniform(2**-20, 2**-19, SIZES["n"])
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    found = product(bench, configuration, a, b)
    finite = np.isfinite(expected)
    assert (~finite).sum() > 3 * SIZES["n"]
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert np.isfinite(found[finite]).all()
    columns = finite[50]
    magnitude = np.abs(a[50:52]).astype(np.float64) @ np.abs(b[:, columns]).astype(np.float64)
    tolerance = 2 * math.sqrt(SIZES["k"]) * (2.0**-10 if "1xtf32" in configuration.variant else 2.0**-24)
    assert (np.abs(found[50:52, columns] - expected[50:52, columns]) <= tolerance * magnitude).all()


@pytest.mark.parametrize("exponent", [-100, -112, -120, -126, -135])
def test_small_numbers_are_as_exact_as_others(case, exponent):
    bench, configuration = case
    generator = np.random.default_rng(2)
    a = generator.uniform(1, 2, (SIZES["m"], SIZES["k"])).astype(np.float32) * np.float32(2.0**exponent)
    b = generator.uniform(-1, 1, (SIZES["k"], SIZES["n"])).astype(np.float32) * np.float32(2.0**90)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    found = product(bench, configuration, a, b)
    magnitude = a.astype(np.float64) @ np.abs(b).astype(np.float64)
    units = 2.0**14 if "1xtf32" in configuration.variant else ERROR_UNITS[configuration.values.SMALL_BF16]
    lost = 2.0**-136 * np.abs(b).astype(np.float64).sum(axis=0) if "1xtf32" in configuration.variant else 0
    assert (np.abs(found - expected) <= magnitude * units * 2.0**-24 + lost).all()


@pytest.mark.parametrize("sizes", [(96, 100, 4096), (512, 512, 512), (700, 700, 520), (2000, 300, 333)], ids=str)
def test_parts_of_tiles_add_up_to_the_same_bits_in_every_launch(device, sizes):
    problem = GEMM.problem(dict(zip("mnk", sizes, strict=True)), "float32", {"trans_a": True, "beta_zero": False})
    bench = device.bench(GEMM, problem, 3)
    generator = random.Random(str(sizes))
    feasible = [c for c in GEMM.space(problem, device.model.limits).feasible if c.values.SPLIT_K > 1]
    for configuration in generator.sample(feasible, 3):
        executable = bench.compile(configuration)
        first: dict[str, np.ndarray] = {}
        for _ in (*bench.arrays.kinds, *bench.arrays.kinds):  # kinds of inputs take turns
            found = bench.verify(executable)
            assert found.wrong == 0, configuration
            np.testing.assert_array_equal(first.setdefault(found.inputs, bench.output()), bench.output())
    bench.close()
