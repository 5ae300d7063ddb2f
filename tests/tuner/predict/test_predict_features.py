"""Predictors: features of a configuration, tiles and waves, and who leads by how much."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from contracts.variant import H200

from tilewright.kernels.catalogue import catalogue
from tilewright.kernels.kernel import Tensor
from tilewright.kernels.problem import Limits
from tilewright.kernels.space import Configuration
from tilewright.kernels.variant import Launch, Variant
from tilewright.tuner.predict.estimate import cycles
from tilewright.tuner.predict.features import FEWEST_TOLD, Features, Registers, sizes_of
from tilewright.tuner.predict.leads import Leads
from tilewright.tuner.predict.library import LEAST_ERROR, Left, LibraryTimes
from tilewright.tuner.predict.tiles import LARGEST, Tiles

GEMM = catalogue().get("gemm")


def tile_of(m, n):
    default = GEMM.variant("wpt").space().default()
    return Configuration.of("wpt", {**default.values, "TILE_M": m, "TILE_N": n})


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_features_are_finite_and_alike_for_every_variant(kernel):
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    for limits in (H200, Limits((0, 0), 1, 2**32, features=frozenset())):
        starts = kernel.space(problem, limits).defaults()
        rows = Features(kernel, limits).rows(problem, starts)
        assert np.isfinite(rows).all()
        assert len({tuple(row) for row in rows}) == len(starts)


@pytest.mark.parametrize("kernel", catalogue().kernels(), ids=lambda k: k.name)
def test_groups_tell_shape_launch_tiles_and_parameters_apart(kernel):
    problem = kernel.problem(kernel.example_shape, kernel.dtypes[0])
    features = Features(kernel, H200)
    starts = kernel.space(problem, H200).defaults()
    rows = features.rows(problem, starts)
    shape, launch, tiles, both, parameters, everything = features.groups(problem, starts[0])
    variant = parameters[-len(kernel.variants) :]
    assert everything == list(range(rows.shape[1]))
    assert sorted({*shape, *launch, *tiles, *parameters}) == everything
    assert set(both) == {*launch, *tiles}
    assert all(set(variant) <= set(group) for group in (shape, launch, tiles, both, parameters))
    plain = [column for column in shape if column not in variant]
    assert (rows[:, plain] == rows[0, plain]).all()  # of one problem all rows have the same
    np.testing.assert_array_equal(rows[:, parameters], [features.parameters(start) for start in starts])


@pytest.mark.parametrize("axes", [{"batch": 5}, {"lda": 1000, "ldc": 513}, {"batch": 2, "stride_a": 0}])
def test_batches_and_views_have_the_features_that_a_single_product_has(axes):
    features = Features(GEMM, H200)
    plain, other = (GEMM.problem({"m": 300, "n": 512, "k": 96, **more}) for more in ({}, axes))
    configuration = GEMM.variant("wpt").space().default()
    rows = np.concatenate([features.rows(problem, [configuration]) for problem in (plain, other)])
    assert np.isfinite(rows).all()
    assert (rows[0] != rows[1]).any()


def test_a_batch_is_compared_as_one_product_of_as_many_rows():
    batch = GEMM.problem({"m": 48, "n": 64, "k": 96, "batch": 10})
    assert sizes_of(GEMM, batch) == {"m": 480, "n": 64, "k": 96}
    one = GEMM.problem({"m": 480, "n": 64, "k": 96})
    shapes = [Features(GEMM, H200).shape(problem) for problem in (batch, one)]
    same = [place for place, (ours, theirs) in enumerate(zip(*shapes, strict=True)) if ours == theirs]
    assert same == [0, 1, 2, 4, 5, 6]  # one of 48 rows is as aligned as before, and B ten times as large


def test_a_convolution_is_compared_by_the_product_inside_and_tiled_as_that():
    conv2d = catalogue().get("conv2d")
    layer = {"batch": 4, "height": 45, "width": 31, "channels": 96, "filters": 200, "kernel_h": 3, "kernel_w": 3}
    problem = conv2d.problem(layer | {"stride": 2, "padding": 1})
    pixels = 4 * 23 * 16
    assert [size for size in sizes_of(conv2d, problem).values() if size > 1] == [pixels, 9 * 96, 200]
    variant = conv2d.variant("tensor3xtf32")
    start = Configuration.of(variant.name, variant.space().default().values)
    tile_m, tile_n = (start.values[f"WARPS_{axis}"] * start.values[f"WARP_{axis}"] for axis in "MN")
    tiles = -(-pixels // tile_m) * -(-200 // tile_n)
    assert math.log2(tiles) in Features(conv2d, H200).rows(problem, [start])[0]
    assert conv2d.plain(conv2d.problem(layer, options={"depthwise": True})).shape["height"] == 45


def test_a_tensor_is_needed_by_the_tiles_along_the_axes_that_it_lacks():
    problem = GEMM.problem({"m": 1000, "n": 700, "k": 500})
    sharing = dict(zip([t.name for t in GEMM.tensors], Tiles(GEMM).sharing(problem, tile_of(64, 128)), strict=True))
    assert sharing == {"A": 6, "B": 16, "C": 1}


def test_a_shape_that_is_not_defined_for_small_sizes_shares_nothing():
    def shape(problem):
        return (1 // max(0, problem.shape["m"] - 500),)

    odd = Tensor("A", "input", shape)
    kernel = replace(GEMM, arguments=(odd, *GEMM.arguments[1:]))
    problem = kernel.problem({"m": 1000, "n": 700, "k": 500})
    assert Tiles(kernel).sharing(problem, tile_of(64, 128))[0] == 1


@pytest.mark.parametrize(("n", "vector"), [(376, 4), (374, 2), (375, 1)])
def test_rows_that_begin_at_no_multiple_of_a_vector_take_more_copies(n, vector):
    features, configuration = Features(GEMM, H200), tile_of(64, 128)
    problem = GEMM.problem({"m": 1765, "n": n, "k": 392})
    copies = features._copies(features._facts_of(problem), configuration)
    of_a, of_b = copies[0:3], copies[3:6]
    assert (of_a[0], of_b[0]) == (2.0, math.log2(vector))
    assert of_b[1] - of_b[2] == pytest.approx(math.log2(vector))
    wide, high = (features._copies(features._facts_of(problem), tile_of(*tile))[-2] for tile in ((64, 128), (128, 64)))
    assert (high < wide) == (n % 4 != 0)  # tiles that share B are worth more where its rows are copied in pieces


LIMITS = Limits(compute_capability=(9, 0), multiprocessors=132, memory_bytes=140 * 2**30, max_shared_bytes=227 * 1024)
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


NAN = math.nan


def test_a_shape_without_a_time_of_the_library_does_not_count():
    leads = Leads.of(np.array([2.0, NAN, 8.0]), np.array([1.0, 1.0, 1.0]), np.zeros(3))
    assert leads.near(np.array([50.0, 0.0, 50.0])) == pytest.approx(math.log(4))
    assert not Leads.of(np.array([1.0, NAN]), np.array([1.0, 0.1]), np.zeros(2)).may_gain(np.array([3.0, 0.0]))


def test_near_shapes_count_more_and_losses_are_taken_off():
    leads = Leads.of(np.array([2.0, 0.5]), np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    assert leads.near(np.array([0.0, 40.0])) == pytest.approx(0.0, abs=1e-6)
    assert leads.near(np.array([40.0, 0.0])) == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize(("gains", "may_gain"), [(1, False), (2, True)])
def test_more_than_a_tenth_of_the_shapes_near_must_gain(gains, may_gain):
    library_ms = np.where(np.arange(19) < gains, 1.2, 1.05)
    assert Leads.of(library_ms, np.ones(19), np.zeros(19)).may_gain(np.ones(19)) is may_gain


def test_each_shape_is_left_out_of_its_own_expectation():
    leads = Leads.of(np.array([NAN, 2.0, 4.0]), np.ones(3), np.zeros(3))
    distances = [np.array([9.0, 0.0, 1.0]), np.array([9.0, 1.0, 0.0])]
    assert leads.near_left_out(distances) == pytest.approx(np.log([4.0, 2.0]))


def fitted(off, near_off):
    """Of a library whose time is a millisecond at every size, where expectations were off by these."""
    timed = [(size, 1.0) for size in range(1, 9)]
    zeros = np.zeros(8)
    left = Left(zeros + off, zeros + 0.1, zeros, zeros + near_off)
    return LibraryTimes.fit(lambda size: [float(size)], lambda size: size, timed, left)


def test_the_estimate_that_is_less_off_at_tuned_shapes_decides():
    by_functions = fitted(LEAST_ERROR, 3.0).expected(4, "made", ours_ms=1.0, deviation=0.1, near_lead=math.log(5))
    by_nearness = fitted(3.0, LEAST_ERROR).expected(4, "made", ours_ms=1.0, deviation=0.1, near_lead=math.log(5))
    assert by_functions.time_ms == pytest.approx(1, rel=0.02)
    assert by_nearness.time_ms == pytest.approx(5, rel=0.02)


def test_where_less_is_known_the_library_is_expected_to_be_faster():
    times = fitted(0.3, 0.3)
    near, far = (times.expected(4, "made", ours_ms=1.0, deviation=d, near_lead=0.0).time_ms for d in (0.1, 0.4))
    assert far < near < 1


MIDDLING = GEMM.problem({"m": 512, "n": 768, "k": 640})


def registers_of(configuration):
    """As a compiler would have it: the sums, two rows and columns, and some for addresses."""
    c = configuration.values
    return 24 + c.WPT_M * c.WPT_N + 2 * (c.WPT_M + c.WPT_N)


@pytest.fixture(scope="module")
def told():
    feasible = GEMM.space(MIDDLING, H200, ["register", "wpt"]).feasible
    return {c: registers_of(c) for c in random.Random(1).sample(list(feasible), 400)}


def test_what_was_compiled_is_known_and_the_rest_is_estimated(told):
    known = dict(list(told.items())[:300])
    features = Features(GEMM, H200, known)
    registers = Registers(known, features.parameters)
    assert registers.of(list(known)) == list(known.values())
    others = [c for c in told if c not in known]
    errors = np.log(np.array(registers.of(others)) / [told[c] for c in others])
    assert len(others) == 100
    assert np.sqrt(np.mean(errors**2)) < 0.1


def test_an_estimate_stays_within_what_was_compiled(told):
    small = {c: count for c, count in told.items() if count < 100}
    registers = Registers(small, Features(GEMM, H200).parameters)
    estimates = registers.of([c for c in told if c not in small])
    assert min(small.values()) <= min(estimates)
    assert max(estimates) <= max(small.values())


def test_nothing_is_estimated_from_too_few_or_where_no_compiler_tells(told):
    few = dict(list(told.items())[: FEWEST_TOLD - 1])
    unknown = list(told)[FEWEST_TOLD:]
    parameters = Features(GEMM, H200).parameters
    assert Registers(few, parameters).of(unknown) == [0] * len(unknown)
    assert Registers(dict.fromkeys(told, 0), parameters).of(list(told)) == [0] * len(told)
    assert Registers({}, parameters).of([]) == []


def test_what_was_never_compiled_is_estimated_and_not_taken_to_need_no_registers(told):
    hidden = max(told, key=lambda c: told[c])
    known = {c: count for c, count in told.items() if c != hidden}

    def row(registers):
        return Features(GEMM, H200, registers).rows(MIDDLING, [hidden])[0]

    as_compiled = row(told)
    assert np.abs(row(known) - as_compiled).max() < 0.5
    assert np.abs(row({}) - as_compiled).max() > 1
