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


@pytest.mark.in_turn(3)
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


@pytest.mark.in_turn(2)
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
