"""Variants of half types on Hopper, gemm's and those made of them: which problems they take, what sources keep to."""

import random
from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import A100, H200, assert_resources_suffice, drawn, needs_nvrtc, parameters_of, verified
from sampling import sampled

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.dtypes import HALF
from tilewright.kernels.gemm import tensor_half_packed_sm90_space as packed_space
from tilewright.kernels.gemm import tensor_half_sm90_space as space
from tilewright.kernels.gemm import tensor_half_space as half
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_half_packed_sm90_space import TENSOR_HALF_PACKED_SM90
from tilewright.kernels.gemm.tensor_half_sm90_space import TENSOR_HALF_SM90
from tilewright.kernels.kernel import TensorMap
from tilewright.kernels.space import SearchSpace, Values

NAME = TENSOR_HALF_SM90.name
GEMM, LINEAR = catalogue().get("gemm"), catalogue().get("linear")
VALUES = TENSOR_HALF_SM90.space().default().values


def problem_of(sizes, dtype="bfloat16", kernel=GEMM, **options):
    """A problem by its sizes, m n k or named."""
    return kernel.problem(sizes if isinstance(sizes, dict) else dict(zip("mnk", sizes, strict=True)), dtype, options)


def changed(**values):
    """The default with other values."""
    return Values({**VALUES, **values})


def feasible_of(problem, **fixed):
    """The feasible configurations with these values."""
    feasible = SearchSpace((TENSOR_HALF_SM90.space(),), problem, H200).feasible
    return [c for c in feasible if fixed.items() <= c.values.items()]


@pytest.mark.parametrize(
    ("sizes", "options", "is_taken"),
    [
        ((512, 512, 512), {}, True),
        ((1000, 1000, 1000), {"trans_a": True, "trans_b": True}, True),
        ((7, 16, 24), {}, True),
        ((512, 512, 508), {}, False),  # rows of A have 1016 bytes
        ((512, 508, 512), {"trans_b": True}, False),  # rows of C
        ((512, 508, 512), {"trans_b": True, "output": "float32"}, True),
        ((508, 512, 512), {"trans_a": True}, False),
        ({"m": 100, "n": 64, "k": 56, "lda": 64, "ldb": 72, "ldc": 72}, {}, True),
        (
            {"m": 100, "n": 60, "k": 56, "lda": 64, "ldb": 64, "ldc": 64},
            {},
            False,
        ),  # rows of C end within 16 bytes
        ({"m": 100, "n": 64, "k": 50, "lda": 56, "ldb": 64, "ldc": 64}, {}, False),  # rows of A
        ({"m": 64, "n": 64, "k": 64, "batch": 8, "stride_b": 0}, {}, True),
        ({"m": 64, "n": 64, "k": 64, "batch": 8, "stride_b": 64 * 64 + 4}, {}, False),
    ],
    ids=str,
)
def test_tensor_maps_take_rows_and_matrices_that_begin_at_16_bytes_and_what_packs_takes_the_others(
    sizes, options, is_taken
):
    assert TENSOR_HALF_SM90.admits(problem_of(sizes, **options), H200) is is_taken
    assert TENSOR_HALF_PACKED_SM90.admits(problem_of(sizes, **options), H200) is not is_taken


def test_it_is_for_half_types_on_9_0_alone():
    kernel = replace(GEMM, variants=(TENSOR_HALF_SM90,))
    sizes = (256, 256, 256)
    assert kernel.usable_variants(problem_of(sizes, "float16", kernel), H200) != []
    assert kernel.usable_variants(problem_of(sizes, "float32", kernel), H200) == []
    assert not TENSOR_HALF_PACKED_SM90.admits(problem_of((255, 255, 255), "float32"), H200)
    for other in ((8, 0), (10, 0)):
        assert kernel.usable_variants(problem_of(sizes, kernel=kernel), replace(H200, compute_capability=other)) == []
    assert kernel.usable_variants(problem_of(sizes, kernel=kernel), replace(H200, features=frozenset())) == []


def test_boxes_are_what_a_block_of_a_cluster_loads():
    clustered = changed(TILE_M=128, TILE_N=256, CLUSTER_M=2)
    a, b, c = TENSOR_HALF_SM90.tensor_maps(clustered, problem_of((512, 512, 512)))
    assert (a, b, c) == (TensorMap("A", (1, 128, 64)), TensorMap("B", (1, 32, 64)), TensorMap("C", (1, 16, 64)))
    across = problem_of((512, 512, 512), trans_a=True, trans_b=True, output="float32")
    a, b, c = TENSOR_HALF_SM90.tensor_maps(clustered, across)
    assert (a.box, b.box, c.box) == ((1, 64, 64), (1, 128, 64), (1, 16, 32))


def test_linear_maps_its_own_arguments():
    problem = problem_of((512, 512, 512), kernel=LINEAR, output="float32")
    maps = LINEAR.variant(NAME).tensor_maps(VALUES, problem)
    assert [(one.tensor, one.box) for one in maps] == [("X", (1, 128, 64)), ("W", (1, 256, 64)), ("Y", (1, 16, 32))]


def test_the_ring_takes_what_shared_memory_has():
    problem, small = problem_of((512, 512, 512)), {"TILE_M": 64, "TILE_N": 64, "MULTIPLIERS": 1}
    assert space.stages(changed(TILE_M=128, TILE_N=256), problem) == 4
    assert space.shared_bytes(changed(TILE_M=128, TILE_N=256), problem) == 4 * 384 * 128 + 8 * 2 * 2048 + 1024
    assert space.stages(changed(**small, RESIDENT=2), problem) == 5
    assert space.stages(changed(**small, RESIDENT=2, SPLIT_K=2), problem) == 6


@pytest.mark.parametrize(
    ("sizes", "options", "clusters", "stages"),
    [
        ((1024, 1024, 1000), {}, (1, 1), 4),  # rows of A have 2000 bytes
        ((1024, 1024, 1000), {}, (1, 2), 8),  # and come by boxes where two blocks share them
        ((1024, 1000, 1024), {}, (1, 2), 4),
        ((1024, 1024, 1000), {"trans_a": True}, (1, 1), 8),
        ((1008, 1008, 1008), {}, (1, 1), 8),
        ({"m": 64, "n": 64, "k": 64, "batch": 2, "stride_a": 64 * 64 + 8}, {}, (1, 1), 4),
        ((1023, 1025, 1027), {}, (1, 1), 8),  # packed
    ],
    ids=str,
)
def test_rows_within_sectors_leave_memory_to_the_cache_that_they_come_by(sizes, options, clusters, stages):
    values = changed(TILE_M=64, TILE_N=128, MULTIPLIERS=1, CLUSTER_M=clusters[0], CLUSTER_N=clusters[1])
    assert space.stages(values, problem_of(sizes, **options)) == stages


def test_blocks_stay_for_all_tiles_or_share_each():
    problem = problem_of((4096, 4096, 4096))
    assert TENSOR_HALF_SM90.launch(changed(CLUSTER_M=2), problem).grid == (128, 1, 1)  # 4 tiles each, as 132 would take
    assert TENSOR_HALF_SM90.launch(changed(TILE_N=192), problem).grid == (118, 1, 1)  # 6 of 704 each
    small = problem_of((256, 512, 4096))
    assert TENSOR_HALF_SM90.launch(VALUES, small).grid == (2 * 2, 1, 1)
    assert TENSOR_HALF_SM90.launch(changed(SPLIT_K=6), small).grid == (2 * 2 * 6, 1, 1)


def test_no_more_than_two_blocks_share_operands():
    for configuration in feasible_of(problem_of((4096, 4096, 4096))):
        assert configuration.values.CLUSTER_M * configuration.values.CLUSTER_N <= 2


def test_clusters_of_one_tile_meet_in_the_workspace():
    problem = problem_of((32, 32, 65536))
    values = changed(TILE_M=64, TILE_N=64, MULTIPLIERS=1, SPLIT_K=128)
    assert space.workspace_bytes(values, problem) == 4 * 8 + 128 * (64 * 64 // 8) * 4
    assert space.workspace_bytes(changed(SPLIT_K=8), problem) == 0
    assert feasible_of(problem, SPLIT_K=128) != []


def test_packed_operands_go_ahead_and_take_their_room():
    problem = problem_of({"m": 65, "n": 71, "k": 130, "batch": 5, "stride_b": 0})
    lines = packed_space.packed_lines(problem, "a"), packed_space.packed_lines(problem, "b")
    assert lines == (3 * 5 * 72, 3 * 72)  # steps of 72 rows, or columns, of each matrix
    assert packed_space.packed_bytes(problem) == (sum(lines) + 2 * 512) * 128
    (_, pack), _ = TENSOR_HALF_PACKED_SM90.launches("gemm", VALUES, problem)
    chunks = lines[0] * 8, 3 * 64 * 12  # of each of 64 k nine times eight columns, which warps take by four
    assert pack.grid == (-(-chunks[0] // 256) - (-chunks[1] // 256), 1, 1)
    too_much = problem_of((65537, 16385, 65537))
    assert not TENSOR_HALF_PACKED_SM90.admits(too_much, H200)


@pytest.mark.parametrize(
    ("kernel", "sizes", "tile"),
    [
        ("gemm", (256, 256, 256), (64, 64)),
        ("gemm", (1024, 1024, 1024), (64, 128)),  # 128 tiles for 132 multiprocessors; of 128 x 256 there are 32
        ("gemm", (2048, 2048, 2048), (128, 256)),
        ("linear", (4096, 4096, 4096), (128, 256)),
    ],
    ids=str,
)
def test_a_search_begins_with_the_tile_whose_turns_are_fast(kernel, sizes, tile):
    kernel = catalogue().get(kernel)
    (start,) = kernel.space(problem_of(sizes, kernel=kernel), H200, [NAME]).defaults()
    assert (*tile, 1) == (start.values.TILE_M, start.values.TILE_N, start.values.SPLIT_K)


@pytest.mark.parametrize(
    ("sizes", "tile", "count"),
    [
        ((1023, 1025, 1027), (64, 136), 16 * 8),  # for 132 multiprocessors; of 64 x 128 there are 144
        ((2047, 2049, 2051), (256, 136), 8 * 16),
        ((2056, 2056, 2056), (128, 144), 17 * 15),  # two each
        ((4097, 4095, 513), (128, 256), 33 * 16),  # four each
    ],
    ids=str,
)
def test_packed_columns_are_parted_by_eights_so_that_tiles_suit_the_device(sizes, tile, count):
    problem = problem_of(sizes)
    (start,) = GEMM.space(problem, H200, [TENSOR_HALF_PACKED_SM90.name]).defaults()
    assert tile == (start.values.TILE_M, start.values.TILE_N)
    assert space.cluster_tiles(start.values, problem) == count


def test_rows_within_sectors_are_packed_where_c_is_large():
    admitted = [size for size in (1000, 1512, 2048) if TENSOR_HALF_PACKED_SM90.admits(problem_of((size,) * 3), H200)]
    assert admitted == [1512]


def test_packed_rows_of_three_pieces_are_held_as_a_whole():
    problem = problem_of((1023, 1025, 1027))
    held = [packed_space.staging_bytes(changed(TILE_N=tile), problem) for tile in (128, 136, 192, 256)]
    assert held == [8 * count * 2048 for count in (2, 3, 3, 2)]
    assert packed_space.staging_bytes(changed(SPLIT_K=2), problem) == 0


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ((4096, 4096, 4096), 2),
        ((2048, 2048, 2048), 1),  # a tile each: without a cluster they begin while the launch before ends
        ((8192, 8192, 64), 1),  # which stores
        ({"m": 128, "n": 512, "k": 1024, "batch": 128}, 1),  # nobody below
    ],
    ids=str,
)
def test_a_search_of_many_long_tiles_begins_with_two_blocks_that_share_columns(sizes, blocks):
    (start,) = GEMM.space(problem_of(sizes), H200, [NAME]).defaults()
    assert (blocks, 1) == (start.values.CLUSTER_M, start.values.CLUSTER_N)


COMPILED = [
    ("gemm", (4096, 4096, 4096), "bfloat16", {}, {"TILE_N": 256, "CLUSTER_M": 2}),
    ("gemm", (1000, 1000, 1000), "float16", {"trans_a": True, "beta_zero": False}, {"SPLIT_K": 2}),
    ("gemm", (64, 128, 16384), "bfloat16", {}, {"SPLIT_K": 64}),
    ("gemm", (2056, 2056, 2056), "bfloat16", {"trans_b": True}, {"TILE_M": 128, "TILE_N": 256, "CLUSTER_M": 1}),
    ("gemm", (2048, 1024, 264), "float16", {"trans_b": True, "output": "float32"}, {"RESIDENT": 2}),
    ("linear", (2048, 4096, 512), "bfloat16", {"activation": "gelu"}, {"TILE_M": 256, "CLUSTER_N": 2}),
    ("gemm", (1023, 1025, 1027), "float16", {"trans_a": True, "beta_zero": False}, {"CLUSTER_M": 2}),
    ("gemm", (2047, 2049, 2051), "bfloat16", {}, {"TILE_M": 256, "TILE_N": 136}),
    ("gemm", (33, 77, 8191), "bfloat16", {"output": "float32"}, {"SPLIT_K": 16}),
    ("linear", (2049, 4095, 513), "bfloat16", {"activation": "gelu"}, {"TILE_M": 256}),
    ("linear_gated", (2048, 14336, 4096), "bfloat16", {}, {"TILE_N": 256, "MULTIPLIERS": 2}),
    ("linear_gated", (1000, 2056, 264), "float16", {"activation": "gelu"}, {"TILE_N": 192, "CLUSTER_M": 2}),
]


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "sizes", "dtype", "options", "fixed"),
    sampled(COMPILED, lambda *case: COMPILED.index(case) % 2 == 0),
    ids=str,
)
def test_configurations_compile_to_what_the_space_says(kernel, sizes, dtype, options, fixed):
    kernel = catalogue().get(kernel)
    problem = problem_of(sizes, dtype, kernel, **options)
    usable = kernel.usable_variants(problem, H200)
    name = next(v.name for v in usable if v.name in {NAME, TENSOR_HALF_PACKED_SM90.name})
    variant = kernel.variant(name)
    [configuration] = drawn(variant, problem, H200, sizes, **fixed)
    # Of the thread's number, before the tiles, a few bytes may be spilled.
    compiled = assert_resources_suffice(kernel, problem, configuration, H200, configuration.values.RESIDENT, 16)
    scratch = [8] if variant.workspace_bytes(configuration.values, problem) else []
    own = [4, 8, 8, 4, 8] if kernel is GEMM else [8] * len(kernel.arguments)
    maps = [128] * len(variant.tensor_maps(configuration.values, problem))
    assert parameters_of(compiled.cubin) == [*own, *scratch, *maps]


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
