"""The variant `tensor_fp64` of gemm: its mapping and arithmetic on the host, its space."""

import itertools
import random
from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import A100, H200, assert_resources_suffice, assert_right, drawn, needs_nvrtc
from sampling import sampled

from tilewright.kernels.gemm import tensor_fp64_space as fp64
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.space import Values

HOST = replace(H200, max_shared_bytes=48 * 1024)
SPACE = fp64.TENSOR_FP64.space()
EXHAUSTIVE = pytest.mark.exhaustive
MOST_SPILLED = 400  # bytes; of 150 random configurations 8 spilled, at most 372 (NVRTC 13.0, sm_80 and sm_90)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, [fp64.TENSOR_FP64], tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "layout", "fixed"),
    [
        ((97, 70, 75), (False, False), {"WARP_M": 32, "WARP_N": 16, "AHEAD": 1}),
        ((64, 132, 260), (True, True), {"SPLIT_K": 4}),
        pytest.param((130, 101, 300), (False, True), {"BLOCKS": 132, "WARP_M": 16, "WARP_N": 16}, marks=EXHAUSTIVE),
        pytest.param((1, 200, 83), (False, False), {"WARP_M": 16, "WARP_N": 64}, marks=EXHAUSTIVE),
        ((130, 36, 64), (True, False), {"WARP_M": 16, "MMA_K": 8, "AHEAD": 0}),
        ({"m": 36, "n": 44, "k": 50, "batch": 3, "lda": 60, "ldc": 46}, (False, True), {"SPLIT_K": 1, "BLOCKS": 0}),
        ({"m": 35, "n": 40, "k": 34, "batch": 40, "stride_a": 0, "ldb": 43}, (True, False), {"BLOCKS": 132}),
        pytest.param((40, 70, 262), (True, False), {"WARP_M": 64, "TILE_K": 32}, marks=EXHAUSTIVE),
        pytest.param((65, 33, 395), (True, True), {"WARP_M": 64, "WARP_N": 16, "SPLIT_K": 6}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_products_are_right_in_every_layout(hosted, device, sizes, layout, fixed):
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1]}
    shape = sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True))
    problem = hosted.problem(shape, "float64", options)
    [configuration] = drawn(fp64.TENSOR_FP64, problem, HOST, sizes, **fixed, BY_CLUSTER=0)
    assert_right(device, hosted, problem, configuration)


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "limits"),
    sampled(
        itertools.product([(4096, 4096, 4096), (1023, 1025, 1027), (16, 6144, 512)], [A100, H200]),
        lambda sizes, limits: (sizes[0] == 1023 and limits is A100) or (sizes[0] == 4096 and limits is H200),
    ),
    ids=str,
)
def test_registers_suffice_for_the_blocks_asked_for(sizes, limits):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b", "beta_zero")}
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), "float64", options)
    for configuration in drawn(fp64.TENSOR_FP64, problem, limits, sizes, 3, BY_CLUSTER=0):
        blocks = configuration.values.MIN_BLOCKS
        assert_resources_suffice(KERNEL, problem, configuration, limits, blocks, MOST_SPILLED)


def test_float32_is_left_to_other_variants_and_older_devices_are_not_offered_it():
    sizes = {"m": 64, "n": 64, "k": 64}
    kernel = replace(KERNEL, variants=(fp64.TENSOR_FP64,))
    single, double = (kernel.problem(sizes, dtype) for dtype in ("float32", "float64"))
    assert kernel.usable_variants(single, H200) == []
    assert kernel.usable_variants(double, replace(H200, compute_capability=(7, 5))) == []
    assert kernel.usable_variants(double, A100) != []


@pytest.mark.parametrize(
    ("blocks", "tile_count", "shared", "walked"),
    # Tiles are 64 x 64, steps of a tile 64.
    [(132, 100, 100, 49), (132, 264, 0, 0), (132, 270, 138, 67), (264, 1000, 472, 115)],
)
def test_what_does_not_divide_among_blocks_is_shared_by_steps(blocks, tile_count, shared, walked):
    values = Values({**SPACE.default().values, "BLOCKS": blocks})
    problem = KERNEL.problem({"m": 64, "n": 64 * tile_count, "k": 1024}, "float64")
    assert (fp64.shared_tiles(values, problem), fp64.walked(values, problem)) == (shared, walked)
    parts = max(2, -(-64 // walked) + 1) if shared else 1
    assert fp64.parts(values, problem) == parts
    tile_bytes = 64 * 64 * 8
    counters = -(-4 * shared // 16) * 16
    assert fp64.workspace_bytes(values, problem) == (counters + shared * parts * tile_bytes if shared else 0)
