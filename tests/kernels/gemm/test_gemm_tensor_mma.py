"""The variants `tensor3xtf32` and `tensor1xtf32` of gemm: their mapping and arithmetic on the host, their space."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import (
    A100,
    H200,
    assert_resources_suffice,
    assert_right,
    assert_right_for_each_kind,
    drawn,
    needs_nvrtc,
)
from sampling import sampled

from tilewright.kernels.gemm import tensor_fp64_space as fp64
from tilewright.kernels.gemm import tensor_mma_space as tensor
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.space import Configuration, Values
from tilewright.tuner.devices.cpu import bench as cpu_bench

GEMM = replace(KERNEL, variants=(tensor.TENSOR3XTF32, tensor.TENSOR1XTF32), default_variant="tensor3xtf32")
EXHAUSTIVE = pytest.mark.exhaustive
MOST_SPILLED = 450  # bytes: a warp tile of 64 x 64 is worth it; 424 where no line is aligned (NVRTC 13.0, sm_90)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with these variants alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, GEMM.variants, tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "layout", "fixed"),
    [
        ((97, 70, 75), (False, False), {"WARP_M": 32, "WARP_N": 16}),
        ((64, 132, 260), (True, True), {"SPLIT_K": 4}),
        pytest.param((33, 50, 131), (False, True), {"WARP_M": 16, "WARP_N": 32, "SPLIT_K": 2}, marks=EXHAUSTIVE),
        pytest.param((1, 200, 83), (False, False), {"WARP_M": 16, "WARP_N": 64}, marks=EXHAUSTIVE),
        ((130, 36, 64), (True, False), {"WARP_M": 16, "WARP_N": 16}),
        pytest.param((40, 70, 262), (True, False), {"WARP_M": 32, "WARP_N": 32, "TILE_K": 64}, marks=EXHAUSTIVE),
        pytest.param((65, 33, 395), (True, True), {"WARP_M": 64, "WARP_N": 16, "SPLIT_K": 6}, marks=EXHAUSTIVE),
        ((33, 34, 2052), (False, True), {"SMALL_BF16": 1, "WARP_M": 16, "WARP_N": 16}),
        pytest.param(
            *((36, 35, 2049), (True, False), {"SMALL_BF16": 1, "WARP_M": 32, "WARP_N": 32, "PROMOTE_K": 32}),
            marks=EXHAUSTIVE,
        ),
    ],
    ids=str,
)
def test_products_are_right_in_every_layout(hosted, device, monkeypatch, sizes, layout, fixed):
    monkeypatch.setattr(tensor, "FEWEST_TERMS_BF16", 2048)  # random inputs are far from the worst
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1]}
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), options=options)
    limits = replace(device.model.limits, multiprocessors=H200.multiprocessors)  # so that splitting k is of use
    [configuration] = drawn(hosted.variant("tensor3xtf32"), problem, limits, sizes, **fixed, BY_CLUSTER=0)
    assert_right(device, hosted, problem, configuration)


@EXHAUSTIVE  # test_every_kind_of_inputs_in_views_and_batches has both variants' defaults
@pytest.mark.parametrize(("variant", "accuracy"), [("tensor3xtf32", "fp32"), ("tensor1xtf32", "tf32")])
def test_every_kind_of_inputs(hosted, device, variant, accuracy):
    problem = hosted.problem({"m": 36, "n": 36, "k": 75}, options={"accuracy": accuracy})
    fixed = {"WARP_M": 16, "WARP_N": 16, "BY_CLUSTER": 0}
    [configuration] = drawn(hosted.variant(variant), problem, device.model.limits, 2, **fixed)
    assert_right_for_each_kind(device, hosted, problem, configuration)


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("value", "split_k"), [(np.inf, 1), (-np.inf, 2), (np.nan, 2), (3.4028e38, 1)], ids=str)
def test_what_has_no_two_parts_is_multiplied_by_fmas(hosted, device, monkeypatch, value, split_k):
    problem = hosted.problem({"m": 18, "n": 20, "k": 64})

    def arrays(*_):
        a, b, c = np.zeros((18, 64), "f"), np.zeros((64, 20), "f"), np.zeros((18, 20), "f")
        a[3, 5], b[5] = value, 0.25
        return {"A": a, "B": b, "C": c}

    monkeypatch.setattr(cpu_bench, "random_arrays", arrays)
    default = hosted.variant("tensor3xtf32").space().default().values
    small = {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "WARPS_N": 1, "TILE_K": 16, "STAGES": 2, "SPLIT_K": split_k}
    with np.errstate(invalid="ignore"):
        assert_right(device, hosted, problem, Configuration.of("tensor3xtf32", {**default, **small}))


SMALL = {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "WARPS_N": 2, "TILE_K": 32, "STAGES": 2}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("variant", "shape", "fixed"),
    [
        ("tensor3xtf32", {"m": 40, "n": 36, "k": 75}, {}),
        pytest.param("tensor3xtf32", {"m": 40, "n": 36, "k": 96}, {"SPLIT_K": 2, "PROMOTE_K": 32}, marks=EXHAUSTIVE),
        pytest.param("tensor3xtf32", {"m": 24, "n": 20, "k": 24, "batch": 5}, {}, marks=EXHAUSTIVE),
        ("tensor3xtf32", {"m": 19, "n": 37, "k": 66, "batch": 2, "lda": 68, "ldb": 40, "ldc": 38}, {"SPLIT_K": 2}),
        pytest.param(
            "tensor3xtf32",
            {"m": 33, "n": 20, "k": 64, "batch": 3, "stride_b": 0, "stride_a": 2115, "ldc": 24},
            {},
            marks=EXHAUSTIVE,
        ),
        ("tensor1xtf32", {"m": 40, "n": 36, "k": 75, "batch": 2}, {"PRODUCTS": 1}),
    ],
    ids=str,
)
def test_every_kind_of_inputs_in_views_and_batches(hosted, device, variant, shape, fixed):
    options = {"accuracy": "tf32" if variant == "tensor1xtf32" else "fp32", "trans_b": "lda" in shape}
    problem = hosted.problem(shape | ({"ldb": 70} if "lda" in shape else {}), options=options)
    default = hosted.variant(variant).space().default().values
    assert_right_for_each_kind(device, hosted, problem, Configuration.of(variant, {**default, **SMALL, **fixed}))


@needs_nvrtc
@pytest.mark.parametrize(
    ("sizes", "arch"),
    sampled(
        itertools.product([(4096, 4096, 4096), (1023, 1025, 1027), (50, 96, 300)], ["sm_80", "sm_90"]),
        lambda sizes, arch: (sizes[0], arch) == (4096, "sm_90"),
    ),
    ids=str,
)
def test_registers_suffice_for_the_threads_that_the_space_admits(sizes, arch):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b", "beta_zero")}
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), options=options)
    limits = replace(H200, compute_capability=(int(arch[3]), 0))
    for configuration in drawn(tensor.TENSOR3XTF32, problem, H200, sizes, 2, BY_CLUSTER=0):
        assert_resources_suffice(KERNEL, problem, configuration, limits, most_spilled=MOST_SPILLED)


def test_few_terms_and_other_arithmetic_are_left_to_other_variants():
    def usable(k, dtype="float32", accuracy="fp32"):
        problem = GEMM.problem({"m": 64, "n": 64, "k": k}, dtype, {"accuracy": accuracy})
        return [v.name for v in GEMM.usable_variants(problem, H200)]

    assert usable(24) == usable(4096) == ["tensor3xtf32"]
    assert usable(23) == usable(4096, accuracy="fp32-fma") == usable(4096, "float64") == []
    assert usable(64, accuracy="tf32") == ["tensor3xtf32", "tensor1xtf32"]
    assert usable(23, accuracy="tf32") == ["tensor1xtf32"]


def test_small_products_in_bf16_need_many_terms():
    space, few, many = tensor.TENSOR3XTF32.space(), tensor.FEWEST_TERMS_BF16 - 1, tensor.FEWEST_TERMS_BF16
    coarse = Values({**space.default().values, "SMALL_BF16": 1})
    shapes = [KERNEL.problem({"m": 2048, "n": 2048, "k": k}) for k in (few, many)]
    assert [space.violated(coarse, p, H200) for p in shapes] == [
        "small products in BF16 are exact enough and of use",
        None,
    ]


def test_older_devices_and_hosts_are_not_offered_the_variants():
    problem = GEMM.problem({"m": 64, "n": 64, "k": 64})
    assert GEMM.usable_variants(problem, replace(H200, compute_capability=(7, 5))) == []
    assert GEMM.usable_variants(problem, replace(H200, compute_capability=(8, 0))) != []
    assert GEMM.usable_variants(problem, replace(H200, features=frozenset())) == []


HOST = replace(H200, max_shared_bytes=48 * 1024)
SPACE = fp64.TENSOR_FP64.space()
MOST_SPILLED_FP64 = 400  # bytes; of 150 random configurations 8 spilled, at most 372 (NVRTC 13.0, sm_80 and sm_90)


@pytest.fixture(scope="module")
def hosted_fp64(tmp_path_factory):
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
def test_products_in_fp64_are_right_in_every_layout(hosted_fp64, device, sizes, layout, fixed):
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1]}
    shape = sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True))
    problem = hosted_fp64.problem(shape, "float64", options)
    [configuration] = drawn(fp64.TENSOR_FP64, problem, HOST, sizes, **fixed, BY_CLUSTER=0)
    assert_right(device, hosted_fp64, problem, configuration)


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
        assert_resources_suffice(KERNEL, problem, configuration, limits, blocks, MOST_SPILLED_FP64)


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
