from dataclasses import replace

import pytest

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.kernels.variant import Launch, Variant
from tilewright.tuner.predict.estimate import cycles
from tilewright.tuner.predict.features import Features
from tilewright.tuner.predict.tiles import LARGEST, Tiles

LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=140 * 2**30, max_shared_bytes=227 * 1024)
GEMM = catalogue().get("gemm")
PROBLEM = GEMM.problem({"m": 1000, "n": 700, "k": 500})


def default_of(variant, **values):
    default = GEMM.variant(variant).space().default()
    return Configuration.of(variant, {**default.values, **values})


def launched_as(launch):
    """gemm with one variant that launches so."""
    kernel = replace(GEMM, variants=(Variant("made", "made.cu", launch),))
    return Tiles(kernel), Configuration("made", ())


@pytest.mark.parametrize(
    ("configuration", "extents"),
    [
        (default_of("tiled", TILE_WIDTH=24), (24, 24, 0)),
        (default_of("naive", BLOCK_X=32, BLOCK_Y=8), (8, 32, 0)),
        (default_of("wpt", TILE_M=128, TILE_N=64), (128, 64, 0)),
        (default_of("register", WARPS_M=2, LANES_M=2, WPT_M=8, WARPS_N=1, WPT_N=4, SHARE_K=16), (32, 64, 0)),
        (default_of("tensor3xtf32_sm90", BLOCKS_R=2, CONSUMERS=2, TILE_S=64, SHARED_A=1, SPLIT_K=2), (64, 256, 0)),
    ],
    ids=lambda value: getattr(value, "variant", ""),
)
def test_tiles_are_what_the_launch_divides_by(configuration, extents):
    assert Tiles(GEMM).extents(PROBLEM, configuration) == extents


def test_tiles_are_counted_where_the_grid_stops_growing():
    persistent = default_of("tensor3xtf32_sm90", BLOCKS=132, BLOCKS_R=1, CONSUMERS=1, TILE_S=64, SHARED_A=1, SPLIT_K=2)
    assert GEMM.variant(persistent.variant).launch(persistent.values, PROBLEM).grid == (132, 1, 1)
    tiling = Tiles(GEMM).tiling(PROBLEM, persistent)
    assert (tiling.count, tiling.parts) == (16 * 11, 2 * 16 * 11)
    assert tiling.whole.stated_shape == {"m": 64, "n": 64, "k": 500}


def test_each_member_of_a_batch_has_its_tiles_and_gaps_between_rows_change_none():
    configuration = default_of("wpt", TILE_M=128, TILE_N=64)
    batched = GEMM.problem({**PROBLEM.stated_shape, "batch": 7, "lda": 4096})
    one, seven = (Tiles(GEMM).tiling(problem, configuration) for problem in (PROBLEM, batched))
    assert (seven.count, seven.parts, seven.whole) == (7 * one.count, 7 * one.parts, one.whole)


def test_images_rows_and_columns_share_the_tiles_of_a_convolution():
    conv2d = catalogue().get("conv2d")
    shape = {"batch": 32, "height": 28, "width": 28, "channels": 128, "filters": 512, "kernel_h": 1, "kernel_w": 1}
    problem, variant = conv2d.problem(shape), conv2d.variant("tensor3xtf32")
    default = Configuration.of(variant.name, variant.space().default().values)
    tile_m, tile_n = (default.values[f"WARPS_{axis}"] * default.values[f"WARP_{axis}"] for axis in "MN")
    tiling = Tiles(conv2d).tiling(problem, default)
    assert tiling.count == -(-32 * 28 * 28 // tile_m) * -(-512 // tile_n)
    assert conv2d.flops(tiling.whole) == 2 * tile_m * tile_n * 128


def test_a_run_of_outputs_is_counted_once_in_tiles_that_axes_share():
    conv2d = catalogue().get("conv2d")
    shape = {"batch": 2, "height": 28, "width": 28, "channels": 32, "filters": 1, "kernel_h": 1, "kernel_w": 1}
    problem = conv2d.problem(shape, "float32", {"depthwise": True})
    runs = Configuration.of("depthwise", {"THREADS": 64, "VECTOR_WIDTH": 1, "RUN_H": 2, "RUN_W": 4})
    tiling = Tiles(conv2d).tiling(problem, runs)
    assert tiling.count == 2 * 14 * 7 * 32 // 64
    assert tiling.count * conv2d.flops(tiling.whole) == conv2d.flops(problem)


def test_what_is_launched_once_is_one_tile():
    tiles, configuration = launched_as(lambda _c, _p: Launch((7, 1, 1), (32, 1, 1)))
    assert tiles.extents(PROBLEM, configuration) == (0, 0, 0)
    tiling = tiles.tiling(PROBLEM, configuration)
    assert (tiling.count, tiling.parts, tiling.whole) == (1, 7, PROBLEM)


def test_the_largest_known_tile_is_found_and_a_larger_one_is_not():
    for width, found in ((LARGEST - 1, LARGEST - 1), (LARGEST, 0)):
        tiles, configuration = launched_as(lambda _c, p, w=width: Launch((-(-p.shape["m"] // w), 1, 1), (32, 1, 1)))
        assert tiles.extents(PROBLEM, configuration) == (found, 0, 0)


def test_a_launch_that_small_shapes_break_divides_nothing():
    tiles, configuration = launched_as(lambda _c, p: Launch((1000 // (p.shape["k"] // 2), 1, 1), (32, 1, 1)))
    assert tiles.extents(PROBLEM, configuration) == (0, 0, 0)
    assert tiles.tiling(PROBLEM, configuration).parts == 4


def test_a_launch_is_asked_for_its_tiles_once():
    asked = []

    def launch(_c, problem):
        asked.append(problem)
        return Launch((-(-problem.shape["m"] // 48), 1, 1), (32, 1, 1))

    tiles, configuration = launched_as(launch)
    assert tiles.extents(PROBLEM, configuration) == (48, 0, 0)
    before = len(asked)
    assert tiles.extents(GEMM.problem({"m": 5, "n": 6, "k": 7}), configuration) == (48, 0, 0)
    assert len(asked) == before


def test_a_round_more_of_tiles_is_a_feature_though_the_grid_is_the_same():
    configuration = default_of(
        "tensor3xtf32_sm90", BLOCKS=132, BLOCKS_R=1, CONSUMERS=1, TILE_S=64, SHARED_A=1, SPLIT_K=1
    )
    full, one_more = (
        Features(GEMM, LIMITS).rows(GEMM.problem({"m": m, "n": 64, "k": 512}), [configuration])[0]
        for m in (64 * 132, 64 * 133)
    )
    # Twice the rounds for all but the same work: by blocks at once, and by multiprocessor.
    assert sum(abs(one_more - full) > 0.9) == 2


def test_small_tiles_cost_their_copies_where_these_take_longest():
    thin, square = default_of("tiled", TILE_WIDTH=4), default_of("tiled", TILE_WIDTH=32)
    problem = GEMM.problem({"m": 4096, "n": 4096, "k": 4096})
    costs = [cycles(Tiles(GEMM), LIMITS, problem, one) for one in (thin, square)]
    copied = 4096**3 * 2 / 4 * 4  # elements of A and B that tiles of 4 read, in bytes
    assert costs[0] == pytest.approx(4000 + copied / (64 * 132), rel=0.01)
    assert costs[0] > 3 * costs[1]
