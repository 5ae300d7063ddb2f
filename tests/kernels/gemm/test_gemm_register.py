"""The variant `register` of gemm: its arithmetic on the host, its model of registers and shared memory."""

import itertools
import random
from dataclasses import replace

import pytest
from contracts.register_on_host import register_on_host
from contracts.variant import H200, assert_right, drawn, needs_nvrtc
from sampling import EXHAUSTIVE, sampled

from tilewright.kernels.gemm import register_space
from tilewright.kernels.gemm.declaration import KERNEL
from tilewright.kernels.space import Values
from tilewright.tuner.compile.compiler import compile_nvrtc

REGISTER = register_space.REGISTER


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """The kernel with this one variant, whose copies work on the host."""
    return register_on_host(KERNEL, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize(
    ("sizes", "dtype", "layout", "fixed", "multiprocessors"),
    [
        ((97, 70, 35), "float32", (False, False), {"SHARE_K": 128}, 132),
        pytest.param((97, 70, 36), "float32", (False, False), {"SHARE_K": 128, "HELD": 1}, 132, marks=EXHAUSTIVE),
        pytest.param((64, 132, 260), "float32", (True, True), {"SHARE_K": 32, "HELD": 1}, 132, marks=EXHAUSTIVE),
        pytest.param((33, 50, 131), "float64", (False, True), {"SHARE_K": 64}, 132, marks=EXHAUSTIVE),
        ((34, 51, 132), "float64", (False, True), {"SHARE_K": 128, "HELD": 1}, 132),
        ((33, 50, 132), "float32", (False, True), {"SHARE_K": 128, "HELD": 1, "TILE_K": 16}, 132),
        pytest.param((1, 200, 19), "float32", (False, False), {"SHARE_K": 128}, 132, marks=EXHAUSTIVE),
        ((130, 36, 8), "float64", (True, False), {"SHARE_K": 128}, 132),
        ((5, 3, 1), "float32", (True, False), {"SHARE_K": 128}, 132),
        ((40, 70, 1030), "float32", (True, False), {"SHARE_K": 8}, 132),
        # Blocks that cross from tile to tile: with so few multiprocessors they are few.
        pytest.param((97, 150, 395), "float32", (False, True), {"SHARE_K": 72}, 2, marks=EXHAUSTIVE),
        ((65, 129, 260), "float64", (True, False), {"SHARE_K": 144}, 2),
        ((190, 131, 300), "float32", (False, False), {"SHARE_K": 176}, 2),
        ((33, 65, 700), "float32", (True, True), {"SHARE_K": 44, "HELD": 1}, 2),
    ],
    ids=str,
)
def test_products_are_right_in_every_layout(hosted, device, *, sizes, dtype, layout, fixed, multiprocessors):
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] != layout[1]}
    problem = hosted.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    limits = replace(device.model.limits, multiprocessors=multiprocessors)  # so that the share is of use
    [configuration] = drawn(REGISTER, problem, limits, sizes, BY_CLUSTER=0, **fixed)
    assert_right(device, hosted, problem, configuration)


@pytest.mark.parametrize(
    ("axes", "layout", "fixed", "multiprocessors"),
    [
        ({"batch": 3, "lda": 264, "ldb": 52, "ldc": 53}, (False, False), {"SHARE_K": 64}, 132),
        ({"batch": 2, "stride_a": 0, "ldb": 264}, (False, True), {"SHARE_K": 128, "HELD": 1}, 132),
        ({"batch": 2, "lda": 80, "stride_a": 40, "ldc": 100, "stride_c": 50}, (True, False), {"SHARE_K": 128}, 132),
        ({"batch": 3, "lda": 35}, (True, True), {"SHARE_K": 144}, 2),
    ],
    ids=str,
)
def test_batches_and_views_are_right_in_blocks_a_tile(hosted, device, axes, layout, fixed, multiprocessors):
    options = {"trans_a": layout[0], "trans_b": layout[1], "beta_zero": layout[0] == layout[1]}
    problem = hosted.problem({"m": 33, "n": 50, "k": 260, **axes}, "float32", options)
    limits = replace(device.model.limits, multiprocessors=multiprocessors)
    [configuration] = drawn(REGISTER, problem, limits, axes, BY_CLUSTER=0, **fixed)
    assert hosted.variant("register").launch(configuration.values, problem).grid[1] == axes["batch"]
    assert_right(device, hosted, problem, configuration)


@needs_nvrtc
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    sampled(
        itertools.product([(4096, 4096, 4096), (1023, 1025, 1027), (50, 96, 300)], ["float32", "float64"]),
        lambda sizes, dtype: (sizes[0], dtype) in {(50, "float64"), (1023, "float32")},
    ),
    ids=str,
)
def test_registers_stay_near_the_estimate_and_do_not_spill(sizes, dtype):
    generator = random.Random(str(sizes))
    options = {name: generator.random() < 0.5 for name in ("trans_a", "trans_b", "beta_zero")}
    problem = KERNEL.problem(dict(zip("mnk", sizes, strict=True)), dtype, options)
    for configuration in drawn(REGISTER, problem, H200, sizes, 3, LAVISH=0):
        definitions = KERNEL.definitions(problem, configuration)
        compiled = compile_nvrtc(KERNEL.source("register"), definitions, "sm_90", KERNEL.entry)
        estimate = register_space.registers(configuration.values, problem)
        assert compiled.resources.registers <= estimate + 48, configuration
        assert compiled.resources.spill_bytes == 0, configuration


def test_only_devices_with_clusters_are_offered_them():
    problem = KERNEL.problem({"m": 64, "n": 64, "k": 4096})
    space = REGISTER.space()
    [clustered] = drawn(REGISTER, problem, H200, 1, SHARE_K=8, BY_CLUSTER=1)
    ampere = replace(H200, compute_capability=(8, 0))
    assert space.violated(clustered.values, problem, ampere) == "there are clusters where blocks form some"
    apart = Values({**clustered.values, "BY_CLUSTER": 0})
    assert space.violated(apart, problem, ampere) is None


@pytest.mark.parametrize(
    ("share", "by_cluster", "shares", "parts"),
    # 64 quads of sums for 256 threads; a cluster of 8 leaves one part of each of its 8 shares. Of 512 steps, 72 128ths
    # are 288: a tile that starts anywhere lies in three pieces at most.
    [(128, 0, 0, 0), (16, 0, 1, 8), (16, 1, 0, 0), (4, 1, 8, 4), (72, 0, 1, 3), (160, 0, 1, 2)],
)
def test_the_workspace_holds_counters_and_parts_of_every_tile(share, by_cluster, shares, parts):
    values = {"WARPS_M": 4, "WARPS_N": 2, "LANES_M": 4, "WPT_M": 8, "WPT_N": 8, "TILE_K": 8, "STAGES": 2}
    values |= {"SHARE_K": share, "BY_CLUSTER": by_cluster, "HELD": 0}
    problem = KERNEL.problem({"m": 300, "n": 129, "k": 4096})
    tile_count, tile_bytes = 3 * 2, 128 * 128 * 4
    counter_bytes = -(-tile_count * shares * 4 // 16) * 16
    expected = counter_bytes + tile_count * parts * tile_bytes
    assert register_space.workspace_bytes(Values(values), problem) == expected


@pytest.mark.parametrize(
    ("tiles", "share", "is_countable"),
    # Tiles of 2^24 steps; a block goes on for 0.56 or 1.25 tiles, and begins steps behind the last one.
    [(255, 72, True), (255, 160, False), (256, 72, False)],
)
def test_steps_of_all_tiles_that_32_bits_do_not_number_are_refused(tiles, share, is_countable):
    values = {"WARPS_M": 4, "WARPS_N": 2, "LANES_M": 4, "WPT_M": 8, "WPT_N": 8, "TILE_K": 8, "STAGES": 2}
    values |= {"SHARE_K": share, "BY_CLUSTER": 0, "HELD": 0}
    problem = KERNEL.problem({"m": 128 * tiles, "n": 128, "k": 2**27})
    assert register_space.is_sound_at_launch(Values(values), problem, H200) is is_countable


def test_a_device_without_ptx_is_not_offered_the_variant():
    host = replace(H200, compute_capability=(0, 0), features=frozenset())
    problem = KERNEL.problem({"m": 64, "n": 64, "k": 64})
    assert "register" not in {v.name for v in KERNEL.usable_variants(problem, host)}


@pytest.mark.parametrize(
    ("name", "trans_a", "trans_b", "elements"),
    # Three buffers of 16 k: 128 rows of A and 128 columns of B, four more where a side is turned on the way.
    [("nn", False, False, 132 + 128), ("tt", True, True, 128 + 132), ("tn", True, False, 128 + 128)],
)
def test_shared_memory_holds_the_ring_and_its_padding(name, trans_a, trans_b, elements):
    tile = {"WARPS_M": 4, "WARPS_N": 2, "LANES_M": 4, "WPT_M": 8, "WPT_N": 8}
    values = Values({**tile, "TILE_K": 16, "STAGES": 3, "BY_CLUSTER": 0, "HELD": 0})
    problem = KERNEL.problem({"m": 512, "n": 512, "k": 512}, options={"trans_a": trans_a, "trans_b": trans_b})
    assert register_space.shared_bytes(values, problem) == 3 * 16 * elements * 4, name


@pytest.mark.parametrize(("extent", "suits"), [(64, False), (65, True)])
def test_a_tile_is_left_out_where_half_of_it_covers_the_axis(extent, suits):
    values = {"WARPS_M": 4, "LANES_M": 4, "WPT_M": 8, "WARPS_N": 4, "WPT_N": 4, "TILE_K": 8}
    wide = Values(values)
    assert (register_space.tile_m(wide), register_space.tile_n(wide)) == (128, 128)
    for sizes in ({"m": extent, "n": 4096}, {"m": 4096, "n": extent}):
        problem = KERNEL.problem({**sizes, "k": 4096})
        assert register_space.tile_suits_problem(wide, problem, H200) is suits
    step = Values(values | {"TILE_K": 32})
    for k, fits in ((16, False), (17, True)):
        problem = KERNEL.problem({"m": 4096, "n": 4096, "k": k})
        assert register_space.tile_suits_problem(step, problem, H200) is fits
