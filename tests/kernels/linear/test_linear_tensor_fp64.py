"""The variant `tensor_fp64` of linear: bias and activation on the host, and its space beside gemm's."""

from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_right, drawn

from tilewright.kernels.linear.declaration import KERNEL
from tilewright.kernels.linear.tensor_variants import LINEAR_TENSOR_FP64


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, [LINEAR_TENSOR_FP64], tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("sizes", "activation", "fixed"),
    [
        ((33, 50, 132), "relu", {"SPLIT_K": 1, "BLOCKS": 0}),
        ((34, 51, 131), "gelu", {"SPLIT_K": 2}),
        ((130, 70, 300), "tanh", {"BLOCKS": 132}),
    ],
    ids=str,
)
def test_bias_and_activation_are_applied_to_finished_sums(hosted, device, sizes, activation, fixed):
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), "float64", {"activation": activation})
    small = {**fixed, "BY_CLUSTER": 0, "WARP_M": 16, "WARP_N": 16}
    limits = replace(H200, max_shared_bytes=48 * 1024)  # the host's
    [configuration] = drawn(LINEAR_TENSOR_FP64, problem, limits, 1, **small)
    assert_right(device, hosted, problem, configuration)
