"""linear_gated: its reference, variants on the host, spaces and boxes of the product inside, where a search begins."""

import math
import random
from contextlib import closing

import numpy as np
import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_resources_suffice, assert_right, drawn, needs_nvrtc, verified

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm.declaration import KERNEL as GEMM
from tilewright.kernels.gemm.tensor_half_space import TENSOR_HALF
from tilewright.kernels.kernel import TensorMap
from tilewright.kernels.linear_gated.declaration import TENSOR, TENSOR_SM90, of_both
from tilewright.kernels.linear_gated.reference import linear_gated_reference
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import SearchSpace, Values

KERNEL = catalogue().get("linear_gated")
HOST = Limits((9, 0), 4, 140 * 2**30, max_shared_bytes=48 * 1024, shared_bytes_per_multiprocessor=228 * 1024)
EXHAUSTIVE = pytest.mark.exhaustive


def problem_of(kernel, sizes, dtype="bfloat16", activation="silu"):
    return kernel.problem(dict(zip("mnk", sizes, strict=True)), dtype, {"activation": activation})


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with the tensor-core variant alone, whose copies and products work on the host."""
    return tensor_on_host(KERNEL, [TENSOR], tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(("sizes", "dtype", "activation"), [((17, 23, 37), "bfloat16", "silu")])
def test_tiles_are_right_on_cuda_cores(device, sizes, dtype, activation):
    problem = problem_of(KERNEL, sizes, dtype, activation)
    configuration = KERNEL.space(problem, device.model.limits, only=["tiled"]).feasible[0]
    assert verified(device, KERNEL, problem, configuration).wrong == 0


def test_gates_that_underflow_are_zeros_beside_infinities(device):
    """Of a sum below -14 gelu leaves nothing in float32, and something in float64: 0 times infinity is NaN."""
    problem = problem_of(KERNEL, (17, 160, 600), "bfloat16", "gelu")
    with closing(device.bench(KERNEL, problem, seed=5)) as bench:
        executable = bench.compile(KERNEL.space(problem, device.model.limits, only=["tiled"]).feasible[0])
        for found in bench.verify_each_kind(executable):
            assert found.is_right, found.message()


@pytest.mark.parametrize(
    ("sizes", "dtype", "activation", "fixed"),
    [
        ((33, 50, 136), "bfloat16", "silu", {"SPLIT_K": 1, "BLOCKS": 0, "WARP_N": 32}),
        ((18, 41, 260), "float16", "gelu", {"SPLIT_K": 2}),
        pytest.param((70, 97, 101), "float16", "relu", {"WARP_N": 16, "SPLIT_K": 1}, marks=EXHAUSTIVE),
        pytest.param((130, 60, 300), "bfloat16", "silu", {"BLOCKS": 56}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_products_are_right_on_tensor_cores(hosted, device, sizes, dtype, activation, fixed):
    problem = problem_of(hosted, sizes, dtype, activation)
    [configuration] = drawn(TENSOR, problem, HOST, sizes, **fixed, BY_CLUSTER=0)
    assert_right(device, hosted, problem, configuration)


@needs_nvrtc
def test_registers_suffice_for_the_blocks_asked_for():
    problem = problem_of(KERNEL, (2048, 14336, 4096))
    configuration = random.Random(1).choice(KERNEL.space(problem, H200, only=["tensor_half"]).feasible)
    assert_resources_suffice(KERNEL, problem, configuration, H200, configuration.values.MIN_BLOCKS)


def test_tiles_are_those_of_the_product_with_all_rows():
    problem = problem_of(KERNEL, (64, 100, 512))
    product = GEMM.problem({"m": 64, "n": 200, "k": 512}, "bfloat16", {"trans_b": True})
    theirs = {tuple(c.values.items()) for c in SearchSpace((TENSOR_HALF.space(),), product, H200).feasible}
    ours = SearchSpace((TENSOR.space(),), problem, H200).feasible
    assert len(ours) > 0
    for configuration in random.Random(1).sample(list(ours), 20):
        both = of_both(configuration.values)
        assert both.WARP_N > 64 or tuple(both.items()) in theirs
        assert TENSOR.launch(configuration.values, problem) == TENSOR_HALF.launch(both, product)


def test_a_tile_on_hopper_has_a_box_of_either_matrix_and_stores_half_its_columns():
    values, problem = TENSOR_SM90.space().default().values, problem_of(KERNEL, (2048, 1000, 512))
    x, w, y = TENSOR_SM90.tensor_maps(values, problem)
    assert (x, w, y) == (TensorMap("X", (1, 128, 64)), TensorMap("W", (1, 128, 64)), TensorMap("Y", (1, 16, 64)))
    _, w, y = TENSOR_SM90.tensor_maps(Values({**values, "TILE_N": 192, "CLUSTER_M": 2}), problem)
    assert (w, y) == (TensorMap("W", (1, 48, 64)), TensorMap("Y", (1, 16, 32), 64))
    assert TENSOR_SM90.launch(values, problem).grid == (128, 1, 1)  # 16 x 8 tiles of 128 x 128 in one turn


@pytest.mark.parametrize(
    ("sizes", "is_taken"), [((7, 8, 8), True), ((512, 1004, 512), False), ((512, 1000, 508), False)], ids=str
)
def test_rows_of_all_matrices_begin_at_16_bytes_for_tensor_maps(sizes, is_taken):
    assert TENSOR_SM90.admits(problem_of(KERNEL, sizes), H200) is is_taken


def test_a_search_begins_with_tensor_cores_where_a_device_has_them(device):
    problem = problem_of(KERNEL, (2048, 14336, 4096))
    on_hopper = ["tensor_half", "tensor_half_turned_sm90", "tensor_half_sm90"]
    for limits, expected in ((H200, on_hopper), (device.model.limits, ["tiled"])):
        first = KERNEL.first_configurations(KERNEL.space(problem, limits))
        assert [configuration.variant for configuration in first] == expected


def test_the_first_product_is_the_one_that_is_activated():
    problem = problem_of(KERNEL, (1, 2, 1), "float16")
    arrays = {"X": np.array([[2.0]]), "W": np.array([[1.0], [-1.0], [3.0], [5.0]])}
    expected = [2 / (1 + math.exp(-2)) * 6, -2 / (1 + math.exp(2)) * 10]
    assert linear_gated_reference(problem, arrays, {}).value[0].tolist() == pytest.approx(expected)
