"""tensor_sm90.cu on the CPU device, Hopper's instructions emulated: roles, ring, layouts, edges, parts of tiles."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.hopper_on_host import HEADERS
from contracts.launches_on_host import needs_cpp_library
from contracts.register_on_host import beside
from sampling import sampled
from waiting import PATIENCE_S

from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_sm90_space import TENSOR1XTF32_SM90, TENSOR3XTF32_SM90
from tilewright.kernels.linear.declaration import KERNEL as LINEAR
from tilewright.kernels.linear.declaration import LINEAR_TENSOR3XTF32_SM90
from tilewright.kernels.space import Configuration
from tilewright.tuner.arrays import random_arrays
from tilewright.tuner.devices.cpu import bench as cpu_bench
from tilewright.tuner.devices.cpu.device import CpuDevice

EXHAUSTIVE = pytest.mark.exhaustive


def on_host(kernel, variants, folder):
    """The kernel with these variants, whose instructions work on the host."""
    folder = beside(HEADERS, kernel, folder)
    variants = tuple(replace(v, requires=frozenset(), max_compute_capability=None) for v in variants)
    return replace(kernel, folder=folder, variants=variants, default_variant=variants[0].name)


@pytest.fixture(scope="module", autouse=True)
def compiler():
    """Nothing here goes without one."""
    needs_cpp_library()


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """gemm."""
    return on_host(KERNEL, (TENSOR3XTF32_SM90, TENSOR1XTF32_SM90), tmp_path_factory.mktemp("kernels"))


def configuration_of(variant, **values):
    """The smallest tiles, two warpgroups that multiply, two stages: what the host has shared memory for."""
    usual = {"TILE_S": 16, "CONSUMERS": 2, "BLOCKS_R": 1, "STAGES": 2, "SPLIT_K": 1, "SHARED_A": 1, "SMALL_BF16": 0}
    parameters = {p.name: p.default for p in variant.parameters}
    return Configuration.of(variant.name, parameters | usual | values)


@pytest.fixture
def bench_of(hosted):
    """Makes a bench of a problem, and closes it."""
    device = CpuDevice(run_timeout_s=PATIENCE_S)
    benches = []

    def bench_of(sizes, layout, more=None, **options):
        options = {"trans_a": "a" in layout, "trans_b": "b" in layout, "beta_zero": layout != "a"} | options
        problem = hosted.problem(dict(zip("mnk", sizes, strict=True)) | (more or {}), "float32", options)
        benches.append(device.bench(hosted, problem, 1))
        return benches[-1]

    yield bench_of
    for bench in benches:
        bench.close()
    device.close()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("sizes", "layout", "values"),
    [
        ((35, 130, 100), "", {}),
        pytest.param((20, 140, 68), "b", {"SHARED_A": 0}, marks=EXHAUSTIVE),
        ((33, 67, 97), "", {"SHARED_A": 0, "CONSUMERS": 1}),  # both operands in the order of memory, shifted
        pytest.param((35, 70, 99), "b", {"CONSUMERS": 1, "TILE_S": 32}, marks=EXHAUSTIVE),
        ((30, 131, 69), "a", {"CONSUMERS": 1}),
        ((130, 24, 72), "ab", {"SHARED_A": 0}),
        ((34, 66, 128), "b", {"CONSUMERS": 1, "BLOCKS_R": 2}),
        ((32, 64, 96), "b", {"CONSUMERS": 1}),  # three whole steps, which go in pairs: the last is one of zeros
        pytest.param((16, 128, 160), "", {"CONSUMERS": 1, "SHARED_A": 0}, marks=EXHAUSTIVE),
        ((64, 640, 130), "", {"CONSUMERS": 1, "SPLIT_K": 2, "BLOCKS": 78}),  # as many blocks as tiles do not divide
        pytest.param((40, 100, 700), "", {"CONSUMERS": 1, "TILE_S": 32, "SMALL_BF16": 1}, marks=EXHAUSTIVE),
        pytest.param((40, 61, 701), "a", {"CONSUMERS": 1, "SMALL_BF16": 1}, marks=EXHAUSTIVE),
        pytest.param((17, 80, 2100), "b", {"CONSUMERS": 1, "SMALL_BF16": 2}, marks=EXHAUSTIVE),
        pytest.param((17, 61, 2101), "b", {"CONSUMERS": 1, "SMALL_BF16": 2}, marks=EXHAUSTIVE),
        pytest.param((40, 70, 300), "", {"CONSUMERS": 1, "SPLIT_K": 3}, marks=EXHAUSTIVE),
        pytest.param(
            (40, 130, 500), "b", {"SPLIT_K": 4, "BLOCKS": 7}, marks=EXHAUSTIVE
        ),  # seven blocks share six tiles: parts of unequal length
        ((70, 200, 300), "", {"SPLIT_K": 2, "BLOCKS": 3, "CONSUMERS": 1}),  # blocks with whole tiles between two parts
        pytest.param((50, 260, 200), "", {"BLOCKS": 3}, marks=EXHAUSTIVE),  # whole tiles, several a block
    ],
    ids=str,
)
def test_products_are_right(bench_of, sizes, layout, values):
    bench = bench_of(sizes, layout)
    executable = bench.compile(configuration_of(TENSOR3XTF32_SM90, **values))
    verification = bench.verify(executable)
    assert verification.wrong == 0, verification.message()


@pytest.mark.parametrize("layout", ["", pytest.param("ab", marks=EXHAUSTIVE)])
def test_every_kind_of_inputs(bench_of, layout):
    bench = bench_of((35, 70, 100), layout)
    executable = bench.compile(configuration_of(TENSOR3XTF32_SM90, CONSUMERS=1, TILE_S=32))
    for verification in bench.verify_each_kind(executable):
        assert verification.is_right, verification.message()


@pytest.mark.parametrize(("layout", "sizes"), [("", (40, 70, 100)), ("b", (33, 65, 97)), ("a", (40, 70, 64))], ids=str)
def test_single_tf32_products_are_right(bench_of, layout, sizes):
    bench = bench_of(sizes, layout, accuracy="tf32")
    configuration = configuration_of(TENSOR1XTF32_SM90, TILE_S=32, CONSUMERS=1, SPLIT_K=2 if layout else 1, BLOCKS=3)
    verification = bench.verify(bench.compile(configuration))
    assert verification.wrong == 0, verification.message()


@pytest.mark.parametrize(
    ("shared_a", "split_k"),
    sampled([(0, 1), (0, 2), (1, 1), (1, 2)], lambda shared_a, split_k: split_k == 1 + shared_a),
)
def test_infinities_and_nan_come_out_as_of_fp32_arithmetic(bench_of, monkeypatch, shared_a, split_k):
    def with_special(*arguments):
        arrays = random_arrays(*arguments)
        a, b = arrays["A"], arrays["B"]
        a[3, 5], a[17, 60], a[34, 99] = np.inf, -np.inf, np.nan
        b[7, 11], b[98, 64], b[5, 40] = np.inf, np.uint32(0xFFFFFFFF).view(np.float32), 0
        a[20, 9], b[9] = np.finfo(np.float32).max, 2.0**-20  # rounds up to infinity, and its products are finite
        return arrays

    monkeypatch.setattr(cpu_bench, "random_arrays", with_special)
    with np.errstate(invalid="ignore"):
        bench = bench_of((35, 66, 100), "")
        configuration = configuration_of(TENSOR3XTF32_SM90, SHARED_A=shared_a, SPLIT_K=split_k, CONSUMERS=1)
        verification = bench.verify(bench.compile(configuration))
    assert verification.wrong == 0, verification.message()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "layout", "more", "values"),
    [
        pytest.param((35, 70, 100), "b", {}, {}, marks=EXHAUSTIVE),
        ((20, 40, 1228), "b", {}, {"SMALL_BF16": 1, "BLOCKS": 3, "TILE_S": 32}),
        pytest.param((17, 20, 4360), "ab", {}, {"SMALL_BF16": 2}, marks=EXHAUSTIVE),
        pytest.param((70, 130, 99), "a", {}, {"SPLIT_K": 2, "BLOCKS": 3, "SHARED_A": 0}, marks=EXHAUSTIVE),
        ((33, 65, 64), "", {"batch": 2}, {"BLOCKS": 3}),
        pytest.param(
            (20, 70, 67), "b", {"batch": 3, "lda": 69, "ldb": 70, "ldc": 72}, {"SHARED_A": 0}, marks=EXHAUSTIVE
        ),
        ((20, 70, 66), "", {"batch": 3, "lda": 68, "ldb": 72, "stride_b": 0, "ldc": 71}, {"SPLIT_K": 2, "BLOCKS": 4}),
        ((19, 66, 64), "a", {"batch": 2, "stride_a": 1217, "stride_b": 4227}, {}),  # matrices that start anywhere
        pytest.param(
            (19, 66, 64), "b", {"batch": 2, "stride_b": 4225}, {"SHARED_A": 0}, marks=EXHAUSTIVE
        ),  # the same, contiguous along k
    ],
    ids=str,
)
def test_every_kind_of_inputs_in_views_and_batches(bench_of, sizes, layout, more, values):
    bench = bench_of(sizes, layout, more)
    executable = bench.compile(configuration_of(TENSOR3XTF32_SM90, CONSUMERS=1, **values))
    for verification in bench.verify_each_kind(executable):
        assert verification.is_right, verification.message()


def test_a_layer_s_bias_and_activation_are_applied_once(tmp_path):
    linear = on_host(LINEAR, (LINEAR_TENSOR3XTF32_SM90,), tmp_path)
    device = CpuDevice(run_timeout_s=PATIENCE_S)
    problem = linear.problem({"m": 35, "n": 69, "k": 100}, "float32", {"activation": "relu"})
    bench = device.bench(linear, problem, 1)
    for split_k in (1, 2):
        configuration = configuration_of(LINEAR_TENSOR3XTF32_SM90, SPLIT_K=split_k, CONSUMERS=1)
        verification = bench.verify(bench.compile(configuration))
        assert verification.wrong == 0, verification.message()
    bench.close()
    device.close()
