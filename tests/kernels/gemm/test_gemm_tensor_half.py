"""The variant `tensor_half` of gemm: its mapping and arithmetic on the host, its space."""

import random
from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import A100, H200, assert_resources_suffice, drawn, needs_nvrtc, verified

from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm import tensor_half_space as half
from tilewright.kernels.gemm.declaration import KERNEL

HOST = replace(H200, multiprocessors=4, max_shared_bytes=48 * 1024)
EXHAUSTIVE = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, [half.TENSOR_HALF], tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("dtype", "sizes", "layout", "fixed", "output"),
    [
        ("bfloat16", (97, 72, 75), (False, False), {"WARP_M": 32, "WARP_N": 64, "AHEAD": 1}, "same"),
        ("float16", (64, 132, 260), (True, True), {"SPLIT_K": 2}, "same"),
        ("bfloat16", (130, 101, 301), (False, True), {"BLOCKS": 56}, "float32"),
        ("float16", (130, 40, 64), (True, False), {"WARP_N": 32, "AHEAD": 0, "BLOCKS": 0, "SPLIT_K": 1}, "float32"),
        ("bfloat16", {"m": 36, "n": 44, "k": 50, "batch": 3, "lda": 60, "ldc": 46}, (False, True), {}, "same"),
        pytest.param("float16", (1, 200, 83), (False, False), {"WARP_N": 64}, "same", marks=EXHAUSTIVE),
        pytest.param("bfloat16", (40, 70, 262), (True, False), {"TILE_K": 64}, "same", marks=EXHAUSTIVE),
        pytest.param("float16", (65, 34, 395), (True, True), {"WARP_M": 64, "SPLIT_K": 6}, "same", marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_products_are_right_in_every_layout(hosted, device, *, dtype, sizes, layout, fixed, output):
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1], "output": output}
    shape = sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True))
    problem = hosted.problem(shape, dtype, options)
    [configuration] = drawn(half.TENSOR_HALF, problem, HOST, sizes, **fixed, BY_CLUSTER=0)
    verification = verified(device, hosted, problem, configuration)
    assert verification.wrong == 0, (configuration, verification.message())
    assert verification.bound_ratio < 1


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "limits", "dtype"),
    [
        ((4096, 4096, 4096), H200, "bfloat16"),
        pytest.param((1023, 1025, 1027), A100, "float16", marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_registers_suffice_for_the_blocks_asked_for(sizes, limits, dtype):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b", "beta_zero")}
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    for configuration in drawn(half.TENSOR_HALF, problem, limits, sizes, 2, BY_CLUSTER=0):
        assert_resources_suffice(KERNEL, problem, configuration, limits, configuration.values.MIN_BLOCKS)


def test_only_half_types_on_8_0_and_later_are_offered_it():
    sizes = {"m": 64, "n": 64, "k": 64}
    kernel = replace(KERNEL, variants=(half.TENSOR_HALF,))
    assert kernel.usable_variants(kernel.problem(sizes, "float32"), H200) == []
    for dtype in HALF:
        problem = kernel.problem(sizes, dtype)
        assert kernel.usable_variants(problem, A100) != []
        assert kernel.usable_variants(problem, replace(H200, compute_capability=(7, 5))) == []


@pytest.mark.parametrize(("leading", "at_once"), [(1024, 8), (1028, 4), (1026, 2), (1025, 1)])
def test_copies_are_as_long_as_lines_divide_into(leading, at_once):
    problem = KERNEL.problem({"m": 64, "n": leading, "k": 64}, "float16")
    assert half.copied_at_once("b", leading, problem) == at_once
