"""The variant `tensor3xfp16_small_sm90` of gemm: its results on the host, its space and where a search begins."""

from dataclasses import replace

import pytest
from contracts.small_on_host import small_on_host
from contracts.variant import H200, assert_resources_suffice, assert_right_for_each_kind, needs_nvrtc
from sampling import EXHAUSTIVE

from tilewright.kernels.gemm import tensor_fp16_small_sm90_space as small
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.space import Configuration, SearchSpace

VARIANT = small.TENSOR3XFP16_SMALL_SM90
DEFAULT = VARIANT.space().default().values
ON_HOST = {"RESIDENT": 4}  # of blocks of which a host's 48 KiB of shared memory hold one


def of_sizes(m, n, k, batch=1, kernel=KERNEL, **options):
    axes = {"m": m, "n": n, "k": k, **({"batch": batch} if batch > 1 else {})}
    return kernel.problem(axes, options=options)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this variant alone, whose tensor cores work on the host."""
    return small_on_host(KERNEL, tmp_path_factory.mktemp("kernels"))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("sizes", "options", "fixed"),
    [
        pytest.param((64, 64, 64, 2), {}, {}, marks=EXHAUSTIVE),
        ((61, 59, 77, 2), {"trans_a": True}, {"TILE_K": 32}),
        ((40, 70, 70, 1), {"trans_a": True, "trans_b": True}, {"TILE_K": 32}),
        ((64, 52, 64, 2), {"beta_zero": False}, {"TILE_K": 32, "SLICES": 2}),
        pytest.param((33, 30, 33, 3), {"trans_b": True}, {"TILE_K": 32}, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_every_kind_of_inputs(hosted, device, sizes, options, fixed):
    problem = of_sizes(*sizes, kernel=hosted, **options)
    configuration = Configuration.of(VARIANT.name, {**DEFAULT, **ON_HOST, **fixed})
    assert_right_for_each_kind(device, hosted, problem, configuration)


@pytest.mark.parametrize(
    "sizes",
    [(64, 64, 64, 512), (48, 9, 32, 1000), (128, 128, 64, 64), (512, 512, 512), (9, 9, 40), (300, 7, 65)],
    ids=str,
)
def test_a_search_begins_with_a_feasible_configuration(sizes):
    problem, space = of_sizes(*sizes), VARIANT.space()
    assert VARIANT in KERNEL.usable_variants(problem, H200)
    assert space.violated(space.start_for(problem, H200).values, problem, H200) is None


def test_it_is_for_small_products_on_hopper():
    def usable(sizes, limits=H200, **options):
        return VARIANT in KERNEL.usable_variants(of_sizes(*sizes, **options), limits)

    assert usable((512, 512, 512))
    assert not usable((1024, 1024, 512))
    assert not usable((64, 64, 513, 64))
    assert not usable((64, 64, 31, 64))
    assert not usable((32, 32, 32, 1024))
    assert not usable((64, 64, 64, 512), accuracy="tf32")
    assert not usable((64, 64, 64, 512), replace(H200, compute_capability=(8, 0)))
    assert not usable((64, 64, 64, 512), replace(H200, shared_bytes_per_multiprocessor=100 * 1024))


@pytest.mark.parametrize(
    "sizes", [(1, 7, 32), (512, 512, 300), (17, 200, 511), (61, 59, 77, 500), (40, 16, 33, 1000)], ids=str
)
@pytest.mark.parametrize("trans_b", [False, True])
def test_no_more_blocks_find_room_than_fall_to_a_multiprocessor(sizes, trans_b):
    problem = of_sizes(*sizes, trans_b=trans_b)
    feasible = SearchSpace((VARIANT.space(),), problem, H200).feasible
    assert len(feasible)
    for configuration in feasible:
        c = configuration.values
        begun = small.launch(c, problem)
        taken = begun.shared_bytes + small.ALIGNMENT_BYTES + 1024
        assert begun.overlaps
        assert c.RESIDENT * taken <= H200.shared_bytes_per_multiprocessor
        assert (c.RESIDENT + 1) * (begun.shared_bytes + 1024) > H200.shared_bytes_per_multiprocessor


@needs_nvrtc
@pytest.mark.in_turn(2)
@pytest.mark.parametrize(
    ("sizes", "fixed"),
    [
        ((64, 64, 64, 512), {"RESIDENT": 4}),
        ((48, 48, 32, 512), {"TILE_K": 32, "RESIDENT": 4}),
        ((512, 512, 512), {"SLICES": 4, "SPLIT_K": 2}),
        ((512, 512, 512), {"SLICES": 2, "SPLIT_K": 2}),
    ],
    ids=str,
)
def test_registers_suffice(sizes, fixed):
    problem = of_sizes(*sizes)
    configuration = Configuration.of(VARIANT.name, {**DEFAULT, **fixed})
    assert_resources_suffice(KERNEL, problem, configuration, H200, configuration.values.RESIDENT)
