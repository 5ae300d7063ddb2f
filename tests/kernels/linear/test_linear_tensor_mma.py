"""The variants of linear on tensor cores: bias and activation on the host, and their space beside gemm's."""

from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import assert_right, drawn

from tilewright.kernels.linear.declaration import KERNEL
from tilewright.kernels.linear.tensor_variants import (
    LINEAR_TENSOR1XTF32,
    LINEAR_TENSOR3XTF32,
    LINEAR_TENSOR3XTF32_SLICED,
)
from tilewright.kernels.space import Configuration


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with these variants alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, (LINEAR_TENSOR3XTF32, LINEAR_TENSOR1XTF32), tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("sizes", "activation", "accuracy", "variant", "split_k"),
    [
        ((33, 50, 132), "relu", "fp32", "tensor3xtf32", 1),
        ((34, 51, 131), "gelu", "fp32", "tensor3xtf32", 2),
        ((16, 70, 64), "none", "fp32", "tensor3xtf32", 1),
        ((20, 36, 100), "tanh", "tf32", "tensor1xtf32", 1),
    ],
    ids=str,
)
def test_bias_and_activation_are_applied_to_finished_sums(
    hosted, device, *, sizes, activation, accuracy, variant, split_k
):
    options = {"activation": activation, "accuracy": accuracy}
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), options=options)
    limits = replace(device.model.limits, multiprocessors=132)  # so that splitting k is of use
    small = {"SPLIT_K": split_k, "BY_CLUSTER": 0, "WARP_M": 16, "WARP_N": 16}
    [configuration] = drawn(hosted.variant(variant), problem, limits, 1, **small)
    assert_right(device, hosted, problem, configuration)


@pytest.mark.parametrize("split_k", [1, 3])
def test_sums_of_slices_are_finished_once(tmp_path, device, split_k):
    layers = tensor_on_host(KERNEL, (LINEAR_TENSOR3XTF32_SLICED,), tmp_path)
    problem = layers.problem({"m": 20, "n": 36, "k": 200}, options={"activation": "relu"})
    small = {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "STAGES": 2, "RESIDENT": 4, "SPLIT_K": split_k}
    default = LINEAR_TENSOR3XTF32_SLICED.space().default().values
    assert_right(device, layers, problem, Configuration.of("tensor3xtf32_sliced", {**default, **small}))


def test_layers_of_few_terms_or_for_cuda_cores_are_left_to_other_variants():
    few = KERNEL.problem({"m": 64, "n": 64, "k": 23})
    cores = KERNEL.problem({"m": 64, "n": 64, "k": 512}, options={"accuracy": "fp32-fma"})
    assert not LINEAR_TENSOR3XTF32.supports(few)
    assert not LINEAR_TENSOR3XTF32.supports(cores)
