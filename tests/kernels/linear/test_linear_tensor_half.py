"""The variant `tensor_half` of linear: bias and activation on the host."""

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import assert_right, drawn

from tilewright.kernels.linear.declaration import KERNEL
from tilewright.kernels.linear.tensor_variants import LINEAR_TENSOR_HALF
from tilewright.kernels.problem import Limits

HOST = Limits((9, 0), 4, 140 * 2**30, max_shared_bytes=48 * 1024, shared_bytes_per_multiprocessor=228 * 1024)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, [LINEAR_TENSOR_HALF], tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("dtype", "sizes", "activation", "output"),
    [
        ("bfloat16", (33, 50, 132), "relu", "same"),
        ("float16", (34, 40, 64), "silu", "float32"),
    ],
    ids=str,
)
def test_bias_and_activation_are_applied_to_finished_sums(hosted, device, dtype, sizes, activation, output):
    options = {"activation": activation, "output": output}
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    small = {"BY_CLUSTER": 0, "BLOCKS": 0, "SPLIT_K": 1, "WARP_N": 32}
    [configuration] = drawn(LINEAR_TENSOR_HALF, problem, HOST, 1, **small)
    assert_right(device, hosted, problem, configuration)
