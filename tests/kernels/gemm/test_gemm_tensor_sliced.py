"""The variant `tensor3xtf32_sliced` of gemm: what its warps share on the host, its space and where a search begins."""

import random
from dataclasses import replace

import pytest
from contracts.tensor_on_host import tensor_on_host
from contracts.variant import H200, assert_resources_suffice, assert_right_for_each_kind, needs_nvrtc

from tilewright.kernels.gemm import tensor_mma_space as mma
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.gemm.tensor_sliced_space import TENSOR3XTF32_SLICED, launch
from tilewright.kernels.space import Configuration, SearchSpace, Values

DEFAULT = TENSOR3XTF32_SLICED.space().default().values
SMALL = {"WARP_M": 16, "WARP_N": 16, "WARPS_M": 1, "WARPS_N": 2, "STAGES": 2, "RESIDENT": 4}
"""Of blocks of which a host's 48 KiB of shared memory hold one."""

EXHAUSTIVE = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose copies and tensor cores work on the host."""
    return tensor_on_host(KERNEL, (TENSOR3XTF32_SLICED,), tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("shape", "layout", "fixed"),
    [
        pytest.param(
            {"m": 37, "n": 70, "k": 150}, (False, False), {"WARP_M": 32, "WARP_N": 32, "WARPS_N": 1}, marks=EXHAUSTIVE
        ),
        ({"m": 17, "n": 34, "k": 138}, (False, True), {"SLICES": 4, "SPLIT_K": 2}),
        pytest.param({"m": 40, "n": 36, "k": 140}, (True, False), {"SLICES": 2, "SPLIT_K": 3}, marks=EXHAUSTIVE),
        pytest.param({"m": 40, "n": 36, "k": 300}, (True, True), {"TILE_K": 32, "STAGES": 3}, marks=EXHAUSTIVE),
        ({"m": 17, "n": 34, "k": 70, "batch": 2, "stride_b": 0}, (False, False), {"SLICES": 1}),
    ],
    ids=str,
)
def test_every_kind_of_inputs_where_warps_share_terms(hosted, device, shape, layout, fixed):
    options = {"trans_a": layout[0], "trans_b": layout[1]}
    configuration = Configuration.of("tensor3xtf32_sliced", {**DEFAULT, **SMALL, **fixed})
    assert_right_for_each_kind(device, hosted, hosted.problem(shape, options=options), configuration)


@pytest.mark.parametrize(
    "sizes",
    [
        (256, 256, 256),
        (512, 512, 512),
        (256, 100, 784),
        (64, 4096, 4096),
        (32, 32, 65536),
        (16, 4096, 14336),
        (9, 9, 64),
    ],
    ids=str,
)
def test_a_search_begins_with_a_block_a_multiprocessor(sizes):
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)))
    space = TENSOR3XTF32_SLICED.space()
    begun = space.start_for(problem, H200)
    assert space.violated(begun.values, problem, H200) is None
    assert mma.blocks(begun.values, problem) <= H200.multiprocessors


@pytest.mark.parametrize("resident", [1, 2, 3])
def test_no_more_blocks_find_room_than_a_multiprocessor_is_to_have(resident):
    problem = KERNEL.problem({"m": 256, "n": 256, "k": 256})
    begun = launch(Values({**DEFAULT, **SMALL, "RESIDENT": resident}), problem)
    taken = begun.shared_bytes + 1024
    assert begun.overlaps
    assert resident * taken <= H200.shared_bytes_per_multiprocessor < (resident + 1) * taken


def test_it_is_for_few_tiles_and_for_devices_whose_launches_overlap():
    def usable(sizes, limits=H200, **axes):
        problem = KERNEL.problem({**dict(zip("mnk", sizes, strict=True)), **axes})
        return TENSOR3XTF32_SLICED in KERNEL.usable_variants(problem, limits)

    assert usable((1024, 1024, 1024))
    assert usable((128, 128, 64), batch=64)
    assert not usable((2048, 2048, 2048))
    assert not usable((64, 64, 64), batch=512)
    assert not usable((512, 512, 512), replace(H200, compute_capability=(8, 0)))
    assert not usable((512, 512, 512), replace(H200, shared_bytes_per_multiprocessor=100 * 1024))
    assert not usable((512, 512, 23))


@pytest.mark.parametrize("sizes", [(1, 7, 31), (24, 24, 24), (257, 3, 1025), (17, 200, 520)], ids=str)
def test_wherever_it_is_offered_there_is_a_configuration(sizes):
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)))
    assert TENSOR3XTF32_SLICED in KERNEL.usable_variants(problem, H200)
    assert len(SearchSpace((TENSOR3XTF32_SLICED.space(),), problem, H200))


@pytest.mark.in_turn(3)
@needs_nvrtc
@pytest.mark.parametrize(
    "fixed",
    [
        {"SLICES": 2},
        {"SLICES": 4, "SPLIT_K": 4, "BY_CLUSTER": 1, "WARP_M": 16, "WARPS_M": 1, "WARPS_N": 1},
        {"SLICES": 1, "SPLIT_K": 2, "BY_CLUSTER": 1},
    ],
    ids=str,
)
def test_registers_suffice_and_shared_memory_is_what_the_declaration_says(fixed):
    problem = KERNEL.problem({"m": 512, "n": 512, "k": 512})
    configuration = Configuration.of("tensor3xtf32_sliced", {**DEFAULT, **fixed})
    assert_resources_suffice(KERNEL, problem, configuration, H200)


def test_random_configurations_have_room_and_whole_parts_of_a_step():
    generator = random.Random(3)
    problem = KERNEL.problem({"m": 256, "n": 100, "k": 784})
    feasible = SearchSpace((TENSOR3XTF32_SLICED.space(),), problem, H200).feasible
    for c in (feasible[generator.randrange(len(feasible))].values for _ in range(200)):
        assert TENSOR3XTF32_SLICED.shared_bytes(c, problem) <= H200.max_shared_bytes
        assert c.SLICES == 1 or c.TILE_K // c.SLICES % c.PROMOTE_K == 0
        assert -(-mma.blocks(c, problem) // H200.multiprocessors) == c.RESIDENT
