"""gemm's `tensor_half_turned_sm90`: where its search begins and ends, and what sources keep to."""

import pytest
from contracts.variant import H200, assert_resources_suffice, needs_nvrtc, parameters_of

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.gemm import tensor_half_turned_sm90_space as space
from tilewright.kernels.gemm.tensor_half_turned_sm90_space import TENSOR_HALF_TURNED_SM90
from tilewright.kernels.gemm.tensor_half_turned_sm90_time import cycles
from tilewright.kernels.space import SearchSpace, Values

GEMM, LINEAR, GATED = (catalogue().get(name) for name in ("gemm", "linear", "linear_gated"))
VALUES = TENSOR_HALF_TURNED_SM90.space().default().values
# What trials on an H200 found fastest, before tiles were shared by the workspace: sizes; tile, split, cluster.
FOUND = [
    ((189, 3584, 3584), {"TILE_M": 96, "TILE_N": 128, "SPLIT_K": 2, "CLUSTER_M": 2}),
    ((647, 5120, 5120), {"TILE_M": 216, "TILE_N": 128, "CLUSTER_N": 4}),
    ((1150, 4096, 4096), {"TILE_M": 192, "TILE_N": 192, "CLUSTER_M": 2}),
    ((100, 5120, 5120), {"TILE_M": 56, "TILE_N": 192, "SPLIT_K": 2, "CLUSTER_M": 2}),
    ((1536, 8960, 1536), {"TILE_M": 192, "TILE_N": 192, "CLUSTER_N": 2}),
    ((178, 4096, 14336), {"TILE_M": 184, "TILE_N": 128, "SPLIT_K": 3, "CLUSTER_N": 2}),
]
SIZES = [sizes for sizes, _ in FOUND] + [(39, 18944, 3584), (24, 4096, 14336), (300, 4096, 4096), (4096, 11008, 4096)]


def problem_of(sizes, dtype="bfloat16", kernel=GEMM, **options):
    """A problem by its sizes, m n k."""
    return kernel.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)


def space_of(problem):
    """The variant's search space for it."""
    return SearchSpace((TENSOR_HALF_TURNED_SM90.space(),), problem, H200)


def changed(**values):
    """The default with other values."""
    return Values({**VALUES, **values})


@pytest.mark.parametrize("options", [{"trans_b": True}, {}, {"trans_a": True}], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_search_begins_with_what_is_feasible(sizes, options):
    sizes = (-(-sizes[0] // 8) * 8, *sizes[1:]) if options.get("trans_a") else sizes
    searched = space_of(problem_of(sizes, **options))
    assert searched.defaults()[0] in searched.feasible


@pytest.mark.parametrize("sizes", [(16, 14336, 4096), (189, 18944, 3584), (65, 40, 264), (4096, 14336, 4096)], ids=str)
def test_a_gated_search_begins_with_tiles_of_both_matrices(sizes):
    searched = GATED.space(problem_of(sizes, kernel=GATED), H200, [TENSOR_HALF_TURNED_SM90.name])
    (start,) = searched.defaults()
    assert start in searched.feasible
    assert start.values.TILE_N // 64 % (2 * start.values.MULTIPLIERS) == 0
    assert not GATED.variant(start.variant).supports(problem_of((65, 24, 264), kernel=GATED))


@pytest.mark.parametrize(("sizes", "tile"), FOUND, ids=str)
def test_what_was_found_fastest_is_among_the_first_by_estimate(sizes, tile):
    problem = problem_of(sizes, trans_b=True)
    unlike = {"MULTIPLIERS", "RESIDENT", "GROUP_M"}
    tilings = {
        tuple(sorted((name, value) for name, value in c.values.items() if name not in unlike)): c
        for c in space_of(problem).feasible
        if c.values.GROUP_M == 8
    }
    ranked = sorted(tilings.values(), key=lambda c: cycles(c.values, problem, H200))
    assert any(({"SPLIT_K": 1, "SPLIT_FAR": 1} | tile).items() <= c.values.items() for c in ranked[:20])


def test_clusters_that_share_a_tile_have_counters_and_room_for_sums():
    problem = problem_of((178, 4096, 14336), trans_b=True)
    shared = changed(TILE_M=96, TILE_N=128, CLUSTER_M=2, SPLIT_FAR=2)
    assert space.blocks(shared, problem) == 2 * 32 * 2
    assert space.workspace_bytes(shared, problem) == 4 * 64 + 128 * 96 * 128 * 4
    assert space.workspace_bytes(changed(SPLIT_K=2), problem) == 0
    assert not space.is_split_one_way(changed(SPLIT_K=2, SPLIT_FAR=2), problem, H200)
    assert not space.is_split_one_way(changed(SPLIT_FAR=4), problem_of((178, 4096, 128)), H200)
    assert space.is_split_one_way(changed(SPLIT_FAR=4), problem, H200)


def test_shared_memory_is_stages_first_and_then_what_is_stored_at_a_time():
    problem = problem_of((1150, 4096, 4096), trans_b=True)
    large = changed(TILE_M=192, TILE_N=192, MULTIPLIERS=3)
    assert space.stages(large, problem) == 4
    assert space.staging_bytes(large, problem) == 2 * space.least_staging_bytes(large, problem)
    small = changed(TILE_M=40, TILE_N=64, MULTIPLIERS=1)
    assert space.stages(small, problem) == 16
    assert space.staging_bytes(small, problem) == 3 * space.least_staging_bytes(
        small, problem
    )  # 40 rows are three pieces


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "sizes", "dtype", "options", "fixed"),
    [
        (GEMM, (178, 4096, 14336), "bfloat16", {"trans_b": True}, {"SPLIT_FAR": 2}),
        (GEMM, (189, 3584, 3584), "float16", {"trans_b": True, "beta_zero": False}, {"SPLIT_K": 2}),
        (GEMM, (520, 776, 328), "bfloat16", {"trans_a": True, "output": "float32"}, {}),
        (LINEAR, (43, 776, 1000), "bfloat16", {"activation": "gelu"}, {}),
        (GATED, (189, 18944, 3584), "bfloat16", {}, {"MULTIPLIERS": 2}),
        (GATED, (100, 776, 4096), "float16", {"activation": "gelu"}, {"SPLIT_FAR": 2}),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_configurations_compile_to_what_the_space_says(kernel, sizes, dtype, options, fixed):
    problem, variant = problem_of(sizes, dtype, kernel, **options), kernel.variant(TENSOR_HALF_TURNED_SM90.name)
    feasible = SearchSpace((variant.space(),), problem, H200).feasible
    configuration = next(c for c in feasible if fixed.items() <= c.values.items())
    compiled = assert_resources_suffice(kernel, problem, configuration, H200)
    has_workspace = variant.workspace_bytes(configuration.values, problem) > 0
    assert has_workspace is (configuration.values.SPLIT_FAR > 1)
    assert len(parameters_of(compiled.cubin)) == len(kernel.arguments) + has_workspace + 3
