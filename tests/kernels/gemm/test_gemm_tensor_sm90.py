"""gemm's variants on Hopper's tensor cores: the arithmetic of the split on the host, and what their space promises."""

from dataclasses import replace

import numpy as np
import pytest
from contracts.variant import H200, assert_resources_suffice, drawn, needs_nvrtc

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm import tensor_sm90_space as space
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_sm90_space import (
    TENSOR1XTF32_MULTICAST_SM90,
    TENSOR1XTF32_SM90,
    TENSOR3XTF32_SM90,
)
from tilewright.kernels.problem import Limits, Problem
from tilewright.kernels.space import Values

MOST_SPILLED = 256  # bytes: of the configurations drawn at most 168 (NVRTC 13.0)
GEMM = replace(KERNEL, variants=(TENSOR3XTF32_SM90, TENSOR1XTF32_SM90))


def problem_of(sizes: tuple[int, int, int], **options: bool | str) -> Problem:
    """A float32 problem."""
    return GEMM.problem(dict(zip("mnk", sizes, strict=True)), "float32", options)


def cut(x: np.ndarray) -> np.ndarray:
    """TF32 as the tensor core takes a float: the low 13 bits ignored."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """The source's round_to_tf32."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def rounded_ahead(low: np.ndarray) -> np.ndarray:
    """The source's rounded_ahead, as the tensor core then takes it."""
    return cut(low * np.float32(1 + float.fromhex("0x1.55p-12")))


def bf16(x: np.ndarray) -> np.ndarray:
    """To the nearest BF16, ties to even."""
    bits = x.view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    nearest = ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), x, nearest)


def split_product(shared: np.ndarray, other: np.ndarray, small_bf16: int) -> np.ndarray:
    """What the three products give, added without error; `shared` is the operand in shared memory."""
    high_shared, high_other = (rounded(shared) if small_bf16 == 2 else cut(shared)), rounded(other)
    low_shared, low_other = shared - high_shared, other - high_other
    if small_bf16 == 2:
        pairs = [(high_shared, high_other), (bf16(shared), bf16(low_other)), (bf16(low_shared), bf16(other))]
    elif small_bf16 == 1:
        pairs = [(high_shared, high_other), (bf16(shared), bf16(low_other)), (rounded_ahead(low_shared), high_other)]
    else:
        pairs = [
            (high_shared, high_other),
            (high_shared, rounded_ahead(low_other)),
            (rounded_ahead(low_shared), high_other),
        ]
    return sum(a.astype(np.float64) * b for a, b in pairs)


@pytest.mark.parametrize("small_bf16", [0, 1, 2])
def test_the_split_is_as_exact_as_the_constraint_on_k_assumes(small_bf16):
    generator = np.random.default_rng(small_bf16)
    # The worst lie a little above powers of two: low parts are as large as they get, high parts as small.
    shared, other = (
        ((1 + 2.0**-8 * generator.random(1_000_000)) * 2.0 ** generator.integers(-30, 31, 1_000_000)).astype(np.float32)
        for _ in range(2)
    )
    exact = shared.astype(np.float64) * other
    units = np.abs(split_product(shared, other, small_bf16) - exact) / np.abs(exact) * 2.0**24
    assert units.max() <= space.ERROR_UNITS[small_bf16]
    assert units.max() >= 0.6 * space.ERROR_UNITS[small_bf16], "the assumption is wasteful"


@pytest.mark.parametrize(("small_bf16", "shortest"), [(0, 64), (1, 1225), (2, 4356)])
def test_short_sums_get_no_split_whose_error_they_cannot_average(small_bf16, shortest):
    for k, allowed in ((shortest - 1, False), (shortest, True)):
        values = Values({"SMALL_BF16": small_bf16})
        assert space.error_stays_within_bound(values, problem_of((512, 512, k)), H200) is allowed


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000, 0x7F7FFFFF])
def test_what_is_not_finite_once_split_shows_in_the_sum(bits):
    """Neither NaN nor infinity nor what rounds up to it becomes a finite sum, which nobody would look at again."""
    odd = np.full(4, bits, np.uint32).view(np.float32)
    usual = np.array([1.5, -2.25, 3e-20, 7e15], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for small_bf16 in (0, 1, 2):
            assert not np.isfinite(split_product(usual, odd, small_bf16)).any()
            # Cut off, the largest float stays finite.
            found = split_product(odd, usual, small_bf16)
            assert bits == 0x7F7FFFFF or not np.isfinite(found).any()


def test_each_accuracy_and_device_gets_the_variants_that_serve_it():
    def names(limits: Limits, sizes: tuple[int, int, int] = (512, 512, 512), **options: str) -> list[str]:
        return [v.name for v in GEMM.usable_variants(problem_of(sizes, **options), limits)]

    three, one = TENSOR3XTF32_SM90.name, TENSOR1XTF32_SM90.name
    assert names(H200) == [three]
    assert names(H200, accuracy="tf32") == [three, one]
    assert names(H200, accuracy="fp32-fma") == []
    assert names(H200, (512, 512, 63)) == []
    assert names(replace(H200, compute_capability=(10, 0))) == []
    assert names(replace(H200, compute_capability=(8, 0))) == []
    double = GEMM.problem({"m": 512, "n": 512, "k": 512}, "float64")
    assert GEMM.usable_variants(double, H200) == []


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1023, 1025, 1027), (16, 4096, 14336), (1, 1, 64)], ids=str)
def test_every_problem_has_configurations_and_no_two_differ_in_stages_alone(sizes):
    feasible = GEMM.space(problem_of(sizes), H200).feasible
    assert 1 <= len(feasible) <= 3000
    rest = {tuple(item for item in configuration.items if item[0] != "STAGES") for configuration in feasible}
    assert len(rest) == len(feasible)
    assert all(configuration.values.BLOCKS == 132 for configuration in feasible)


@pytest.mark.parametrize(
    ("sizes", "begun"),
    [
        ((64, 4096, 4096), {"SHARED_A": 1, "TILE_S": 64, "CONSUMERS": 1, "BLOCKS_R": 1, "SPLIT_K": 2, "STAGES": 8}),
        ((128, 4096, 4096), {"SHARED_A": 1, "TILE_S": 128, "CONSUMERS": 2, "BLOCKS_R": 1, "SPLIT_K": 4, "STAGES": 4}),
        ((4096, 32, 4096), {"SHARED_A": 0, "TILE_S": 32, "CONSUMERS": 1, "BLOCKS_R": 1, "SPLIT_K": 2, "STAGES": 8}),
        ((2048, 2048, 2048), {"SHARED_A": 1, "TILE_S": 128, "CONSUMERS": 2, "BLOCKS_R": 2, "SPLIT_K": 1, "STAGES": 3}),
        ((100352, 64, 576), {"SHARED_A": 0, "TILE_S": 64, "CONSUMERS": 2, "BLOCKS_R": 2, "SPLIT_K": 1, "STAGES": 4}),
        ((5, 5, 5000), {"TILE_S": 16, "SPLIT_K": 32}),
    ],
    ids=str,
)
def test_a_search_begins_with_few_lines_in_shared_memory_and_parts_that_run_at_once(sizes, begun):
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), options={"trans_b": sizes[0] > 4096})
    start = TENSOR3XTF32_SM90.space().start_for(problem, H200).values
    assert begun.items() <= dict(start).items()
    assert TENSOR3XTF32_SM90.space().violated(start, problem, H200) is None


def test_the_grid_is_persistent_and_no_larger_than_its_work():
    values = {"TILE_S": 128, "CONSUMERS": 2, "BLOCKS_R": 2, "SHARED_A": 1, "SPLIT_K": 1, "BLOCKS": 132, "STAGES": 3}
    values |= {"PRODUCTS": 3, "SMALL_BF16": 0}
    large = TENSOR3XTF32_SM90.launch(Values(values), problem_of((4096, 4096, 4096)))
    assert large.grid == (132, 1, 1)
    small = TENSOR3XTF32_SM90.launch(Values(values | {"SPLIT_K": 3}), problem_of((129, 256, 4096)))
    assert small.grid == (2 * 1 * 3, 1, 1)
    assert small.block == (512, 1, 1)


@pytest.mark.parametrize(
    ("layout", "sizes", "expected_bytes"),
    # High and low parts: 128 lines of 128 bytes each. The other operand: 32 lines of 264, or 256 lines of k.
    [
        ((False, False), (512, 512, 512), 2 * 128 * 128 + 32 * 264 * 4),
        ((False, True), (512, 512, 512), 2 * 128 * 128 + 256 * 128),
        # In the order of memory first: 32 lines of 136; rows of odd length: 36 elements a line and 4 more each sixteen.
        ((True, False), (512, 512, 512), 2 * 128 * 128 + 32 * 264 * 4 + 32 * 136 * 4),
        ((False, True), (512, 512, 511), 2 * 128 * 128 + (256 + 128) * 145),
    ],
    ids=str,
)
def test_a_stage_holds_both_operands_and_the_low_parts(layout, sizes, expected_bytes):
    values = Values({"TILE_S": 128, "CONSUMERS": 2, "BLOCKS_R": 2, "SHARED_A": 1, "PRODUCTS": 3, "SMALL_BF16": 0})
    problem = problem_of(sizes, trans_a=layout[0], trans_b=layout[1])
    assert space.stage_bytes(values, problem) == -(-expected_bytes // 1024) * 1024


def test_the_workspace_holds_counters_and_two_tiles_of_every_block():
    values = Values(
        {"PRODUCTS": 3, "TILE_S": 64, "CONSUMERS": 2, "BLOCKS_R": 1, "SHARED_A": 1, "SPLIT_K": 3, "BLOCKS": 132}
    )
    problem = problem_of((65, 129, 4096))  # 2 x 2 tiles of 64 x 128, two warpgroups
    assert space.workspace_bytes(values, problem) == 4 * 2 * 4 + 2 * (4 * 3) * 64 * 128 * 4
    assert space.workspace_bytes(Values({**values, "BLOCKS": 10}), problem) == 4 * 2 * 4 + 2 * 10 * 64 * 128 * 4
    assert space.workspace_bytes(Values({**values, "SPLIT_K": 1}), problem) == 0


@pytest.mark.parametrize(
    ("sizes", "layout", "shared"),
    [
        ((512, 512, 512), (False, False), "A"),
        ((512, 512, 512), (True, True), "B"),
        ((512, 512, 512), (False, True), "AB"),
        ((512, 512, 512), (True, False), ""),  # no operand has lines of k
        ((512, 512, 514), (False, True), ""),  # rows begin between 16 bytes
        ((512, 64, 512), (False, False), ""),  # one tile beside another has nothing to do
    ],
    ids=str,
)
def test_clusters_share_what_a_tensor_map_can_name(sizes, layout, shared):
    problem = problem_of(sizes, trans_a=layout[0], trans_b=layout[1], accuracy="tf32")
    variant = TENSOR1XTF32_MULTICAST_SM90
    usable = variant in KERNEL.usable_variants(problem, H200)
    values = [c.values for c in KERNEL.space(problem, H200, [variant.name]).feasible] if usable else []
    maps = [variant.tensor_maps(c, problem)[0] for c in values]
    assert {one.tensor for one in maps} == set(shared)
    assert all(space.blocks(c, problem) % 2 == 0 for c in values)
    assert all(one.box == (1, c.TILE_S // 2, 32) for one, c in zip(maps, values, strict=True))


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("name", "sizes", "layout"),
    [
        pytest.param("tensor3xtf32_sm90", (4096, 4096, 4096), (False, False), marks=pytest.mark.exhaustive),
        ("tensor3xtf32_sm90", (1023, 1025, 1027), (True, False)),
        pytest.param("tensor3xtf32_sm90", (300, 514, 2050), (True, True), marks=pytest.mark.exhaustive),
        ("tensor1xtf32_sm90", (1000, 1001, 1000), (False, True)),
    ],
    ids=str,
)
def test_configurations_compile_to_what_the_space_says(name, sizes, layout):
    variant = GEMM.variant(name)
    accuracy = "tf32" if variant is TENSOR1XTF32_SM90 else "fp32"
    problem = problem_of(sizes, trans_a=layout[0], trans_b=layout[1], accuracy=accuracy, beta_zero=layout[0])
    for configuration in drawn(variant, problem, H200, sizes, 2):
        assert_resources_suffice(GEMM, problem, configuration, H200, most_spilled=MOST_SPILLED)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("kernel", ["gemm", "linear"])
@pytest.mark.parametrize("accuracy", ["fp32", "tf32"])
@pytest.mark.parametrize(
    "sizes", [(300, 300, 1), (300, 300, 63), (300, 300, 64), (5, 7, 100), (16, 16, 64), (17, 16, 64), (16, 17, 64)]
)
def test_what_is_usable_has_something_to_launch(kernel, accuracy, sizes):
    declared = catalogue().get(kernel)
    problem = declared.problem(dict(zip(declared.axes, sizes, strict=True)), "float32", {"accuracy": accuracy})
    for limits in (H200, replace(H200, max_shared_bytes=48 * 1024)):
        usable = {variant.name for variant in declared.usable_variants(problem, limits)}
        assert {c.variant for c in declared.space(problem, limits).feasible} == usable
        assert ("tensor3xtf32_sm90" in usable) == (sizes[2] >= 64)
